"""Several runs to compare: arms and seeds, and a control run."""
