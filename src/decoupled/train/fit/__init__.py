"""What is fitted on development data: scores, thresholds, and how many candidates must be read."""
