"""A black-box kit that checks any Endpoint Picker over the wire, as the gateways call it.

It imports nothing of this project's own picker but the wire messages: it must be able to disagree with it.
"""
