"""What the launches say of each knob: attribution, settings without effect, predictions of what was not tried."""
