"""Real Ray clusters on this machine: several nodes, a driver that sees another disk, and faults (`make test-cluster`)."""
