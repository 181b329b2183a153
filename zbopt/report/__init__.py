"""Results for people: pages of text, the Gantt in the terminal, and the picture for a notebook."""
