"""A shop: orders by HTTP, a worker that bills and ships them, a nightly report, metrics, traces and tests.

Start the three parts with a server of `aiozkqueue zookeeper`, in `examples`:

AIOZKQUEUE_HOSTS=127.0.0.1:2181 uvicorn shop.web:web
aiozkqueue worker shop.queues:app --hosts 127.0.0.1:2181 --health-port 8081
curl --json '{"id": 1, "article": "teapot", "cents": 990}' http://127.0.0.1:8000/orders
"""
