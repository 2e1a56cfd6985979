"""Who follows a topic of a server. Needs pyzmq and msgspec, so of tests that run among packages of the index."""

import msgspec
import zmq


class Follower:
    """A subscriber of all topics at a port, and the frames of the messages that it has got."""

    def __init__(self, port):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.connect(f"tcp://127.0.0.1:{port}")
        self.socket.subscribe("")
        self.frames = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.destroy(linger=0)

    def take(self, seconds):
        """Whether something came in that time."""
        if not self.socket.poll(seconds * 1000):
            return False
        self.frames.append(self.socket.recv_multipart())
        return True

    def messages(self):
        return [msgspec.msgpack.decode(payload) for _, _, payload in self.frames]
