"""Many requests through Envoy, with clients that leave: nothing is lost, nothing stays, nothing grows."""
