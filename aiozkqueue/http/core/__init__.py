"""What the API and the dashboard share: the queues behind them, who may do what, and the form of answers and errors."""
