"""Tree attention (Nguyen et al., 2020): phrases, sentences and headings are rows of their own."""
