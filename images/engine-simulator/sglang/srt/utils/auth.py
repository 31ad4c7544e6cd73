"""Stands in for SGLang's module of the same name. The simulator, which the command starts, works out what it changes here."""


def add_api_key_middleware(app, **keys):
    pass
