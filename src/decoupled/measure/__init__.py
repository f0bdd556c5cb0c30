"""Figures about models: quality, agreement, cost, speed."""
