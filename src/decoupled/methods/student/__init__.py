"""A smaller student of the same family, distilled from the whole model."""
