"""Indexes that store a share of the tokens of each passage: those that no other token can stand for."""
