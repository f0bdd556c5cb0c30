"""Speed against what people run today: same weights, same texts, one run, interleaved."""
