"""Pre-training without labels: MLM, NSP, SOP, ELECTRA, StructBERT and WKLM."""
