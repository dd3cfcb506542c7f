"""What a run leaves on the disk: logs, checkpoints, identity, dumps; and what reads them again."""
