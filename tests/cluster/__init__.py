"""Real Ray clusters on this machine: several nodes, a disk that only the driver sees, faults (`make test-cluster`)."""
