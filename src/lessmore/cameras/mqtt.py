"""Answers by MQTT, with the messages by which Home Assistant finds them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from paho.mqtt.client import Client, ConnectFlags
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from lessmore.cameras.answer import CameraAnswer
from lessmore.cameras.notices import Notices, Notify, answer_json
from lessmore.cameras.source import hidden
from lessmore.errors import ConfigError

PREFIX = "lessmore"
_LONGEST = 255
"""Characters that Home Assistant takes for a state."""
_SOONEST, _LATEST = 1, 30
"""Seconds between attempts to reach the broker again."""


class MqttSink(Notices):
    """Sends answers to a broker, which may go away and come back.

    While it is away nothing is kept but the last answer of each source, which it gets when it is back.
    """

    def __init__(self, address: str, sources: Sequence[str], notify: Notify = "changes") -> None:
        """Connect in the background.

        Args:
            address: `mqtt://user:password@host:1883/prefix`, or `mqtts://` for TLS.
            sources: Names of the sources.
            notify: Whether every answer is sent.

        Raises:
            ConfigError: It is no such address.
        """
        super().__init__(notify)
        host, port, user, password, secure, self._prefix = mqtt_address(address)
        self._shown, self._sources = hidden(address), list(sources)
        self._last: dict[str, str] = {}
        self._conditions: dict[str, str] = {}
        self._lock = threading.Lock()
        self.connections = 0
        """How often the broker was reached."""
        self._client = Client(CallbackAPIVersion.VERSION2)
        if user is not None:
            self._client.username_pw_set(user, password)
        if secure:
            self._client.tls_set()
        self._client.will_set(f"{self._prefix}/availability", "offline", qos=1, retain=True)
        self._client.reconnect_delay_set(_SOONEST, _LATEST)
        self._client.on_connect = self._on_connect
        self._client.connect_async(host, port, keepalive=30)
        self._client.loop_start()

    def send(self, answer: CameraAnswer) -> None:
        """Publish an answer, or keep it until the broker is there."""
        with self._lock:
            self._last[answer.source] = answer_json(answer)
            self._publish(f"{answer.source}/state", self._last[answer.source])

    def told(self, source: str, condition: str, why: str) -> None:
        """Publish whether a source is live.

        Args:
            source: Its name.
            condition: Its condition.
            why: Not sent: it may name addresses.
        """
        with self._lock:
            self._conditions[source] = "ON" if condition == "live" else "OFF"
            self._publish(f"{source}/live", self._conditions[source])

    def close(self) -> None:
        """Say goodbye, if the broker is there."""
        if self._client.is_connected():
            with self._lock:
                self._client.publish(f"{self._prefix}/availability", "offline", qos=1, retain=True).wait_for_publish(2)
        self._client.disconnect()
        self._client.loop_stop()
        if not self.connections:
            self.problems.append(f"{self._shown} was never reached; check the address and the broker")

    def _publish(self, topic: str, payload: str) -> None:
        """Publish for good, if there is a connection; without one the next brings it."""
        if self._client.is_connected():
            self._client.publish(f"{self._prefix}/{topic}", payload, qos=0, retain=True)

    def _on_connect(
        self, client: Client, data: Any, flags: ConnectFlags, code: ReasonCode, more: Properties | None
    ) -> None:
        if code.is_failure:
            self._note(f"{self._shown} refuses the connection ({code}); check user and password")
            return
        with self._lock:
            self.connections += 1
            client.publish(f"{self._prefix}/availability", "online", qos=1, retain=True)
            for topic, config in discovery(self._prefix, self._sources):
                client.publish(topic, json.dumps(config), qos=1, retain=True)
            for source, state in self._conditions.items():
                client.publish(f"{self._prefix}/{source}/live", state, retain=True)
            for source, state in self._last.items():
                client.publish(f"{self._prefix}/{source}/state", state, retain=True)

    def _note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


def mqtt_address(address: str) -> tuple[str, int, str | None, str | None, bool, str]:
    """Host, port, user, password, whether by TLS, and the prefix of topics.

    Raises:
        ConfigError: It is no address of a broker.
    """
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{hidden(address)} is no address ({error}); write mqtt://host:1883") from error
    prefix = parts.path.strip("/") or PREFIX
    if parts.scheme not in ("mqtt", "mqtts") or not host or any(sign in prefix for sign in "+#\0"):
        raise ConfigError(f"{hidden(address)} is no address of a broker; write mqtt://host:1883 or mqtts://host:8883")
    user, password = (None if one is None else unquote(one) for one in (parts.username, parts.password))
    secure = parts.scheme == "mqtts"
    return host, port or (8883 if secure else 1883), user, password, secure, prefix


def discovery(prefix: str, sources: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Topics and messages by which Home Assistant finds a device for each source, with its sensors.

    Args:
        prefix: Of our own topics.
        sources: Names of the sources.
    """
    for source in sources:
        one = "".join(sign if sign.isalnum() else "_" for sign in f"{prefix}_{source}")
        common = {
            "availability_topic": f"{prefix}/availability",
            "device": {"identifiers": [one], "name": source, "manufacturer": "lessmore"},
            "origin": {"name": "lessmore"},
        }
        state = {"state_topic": f"{prefix}/{source}/state", **common}
        for part, more in _SENSORS.items():
            yield f"homeassistant/sensor/{one}/{part}/config", {**state, "unique_id": f"{one}_{part}", **more}
        yield (
            f"homeassistant/binary_sensor/{one}/live/config",
            {
                **common,
                "state_topic": f"{prefix}/{source}/live",
                "unique_id": f"{one}_live",
                "name": "Live",
                "device_class": "connectivity",
            },
        )


_SENSORS: dict[str, dict[str, str]] = {
    "answer": {
        "name": "Answer",
        "value_template": f"{{{{ 'unknown' if value_json.unknown else value_json.label[:{_LONGEST}] }}}}",
    },
    "score": {
        "name": "Score",
        "value_template": "{{ (100 * value_json.score) | round(1) }}",
        "unit_of_measurement": "%",
        "state_class": "measurement",
    },
    "domain_changes": {
        "name": "Domain changes",
        "value_template": "{{ value_json.domain_changes }}",
        "state_class": "total_increasing",
    },
}
