"""The parts that the API and the dashboard share: queues, permissions, and the form of answers and errors."""
