"""The parts that the API and the dashboard share: queues, permissions, and the format of responses and errors."""
