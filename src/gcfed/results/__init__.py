"""Reading runs: a run directory, groups of runs, statistics, tables, pictures, data frames."""
