"""Stands in for SGLang's module of the same name. The simulator, which the command starts, works out what it changes here."""

from enum import Enum


class AuthLevel(Enum):
    NORMAL = "normal"
    ADMIN_OPTIONAL = "admin_optional"


def auth_level(level):
    return lambda endpoint: endpoint


def add_api_key_middleware(app, **keys):
    pass
