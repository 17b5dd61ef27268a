"""Gateway readiness: is the chain from Gateway over HTTPRoute and InferencePool to EPP and workers whole?"""
