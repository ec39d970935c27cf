"""What methods are made of: each file one idea of the paper or of its controls, none knows a method."""
