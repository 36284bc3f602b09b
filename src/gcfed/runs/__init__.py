"""Making runs: training, writing them down, going on with them, doing them again."""
