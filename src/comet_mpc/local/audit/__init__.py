"""What each party receives, recorded over many runs and judged beside protocols that are broken on purpose."""
