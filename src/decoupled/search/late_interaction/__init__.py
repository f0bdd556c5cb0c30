"""A cheap look at all candidates, so that the cross component reads only the best of them."""
