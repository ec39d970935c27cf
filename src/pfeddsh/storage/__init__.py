"""What a run keeps on disk: atomic files, checkpoints, and controls that runs share."""
