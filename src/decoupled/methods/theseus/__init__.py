"""BERT-of-Theseus (Xu et al., 2020): modules are replaced one by one while training."""
