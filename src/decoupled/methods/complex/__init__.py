"""Complex word embeddings (Wang et al., 2020): the position turns the phase of each word's vector."""
