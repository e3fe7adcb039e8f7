"""Where objects are kept: in memory as they are served, and in a log that outlives the process."""
