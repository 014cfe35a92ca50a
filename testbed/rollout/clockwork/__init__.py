"""The parts of the asynchronous clock: responses, slots, weights, admission, replay."""
