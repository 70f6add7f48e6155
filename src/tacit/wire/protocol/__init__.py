"""The protocol: messages, their bytes, who may say what and when. No sockets here."""
