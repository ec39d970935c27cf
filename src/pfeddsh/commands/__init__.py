"""The commands of a single computer, by subject; those of comparing, reporting and live federations are with theirs."""
