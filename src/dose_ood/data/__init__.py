"""Images as arrays: where they come from, how they are split, and how they are shifted."""
