"""What can be said before a run: whether it can reach its end, how much memory it takes, what looks odd."""
