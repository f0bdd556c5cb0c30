"""What the scores of a model mean: blend, calibration and silence, fitted on development data."""
