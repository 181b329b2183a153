"""Reports of results: pages of text, JSON, and charts for terminal, notebook, browser and paper."""
