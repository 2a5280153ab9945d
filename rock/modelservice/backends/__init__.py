"""Who answers inside the service: workers of its own, made from names or a file."""
