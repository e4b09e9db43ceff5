"""How well do methods tell data apart? Metrics, and problems whose answer is known."""
