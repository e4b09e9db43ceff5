"""The service: `create_app(detector)` is an ASGI app that speaks the Open Inference Protocol and has a page at `/`."""
