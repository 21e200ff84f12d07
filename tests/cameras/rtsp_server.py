"""An RTSP camera: sends pictures as H.264, round and round, by GStreamer. It runs in the system's Python.

/usr/bin/python3 rtsp_server.py PORT 'FOLDER/%03d.jpg' COUNT RATE
"""

import sys

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer  # noqa: E402

Gst.init(None)
port, pictures, count, rate, *form = sys.argv[1:]
encoded = "jpegdec ! videoconvert ! openh264enc gop-size=10 ! rtph264pay name=pay0 pt=96 config-interval=1"
server = GstRtspServer.RTSPServer()
server.set_address("127.0.0.1")
server.set_service(port)
factory = GstRtspServer.RTSPMediaFactory()
factory.set_launch(
    f'( multifilesrc location="{pictures}" stop-index={int(count) - 1} loop=true caps="image/jpeg,framerate={rate}/1" '
    f"! {'jpegparse ! rtpjpegpay name=pay0 pt=26' if form else encoded} )"
)
factory.set_shared(True)
server.get_mount_points().add_factory("/live", factory)
if not server.attach(None):
    sys.exit("the port is taken")
print("ready", flush=True)
GLib.MainLoop().run()
