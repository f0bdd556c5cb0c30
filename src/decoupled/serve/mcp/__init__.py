"""The Model Context Protocol: an index, or a folder that is kept indexed, as tools of an agent."""
