"""Late interaction: a cheap score of all candidates, so that the cross component reads only the best."""
