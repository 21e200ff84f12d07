"""Watch cameras, videos and folders: one stream for each, one model for all, one line each in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from jsonargparse import ArgumentParser, Namespace

from lessmore.cli.common import (
    INTERRUPTED,
    OK,
    SOME_FAILED,
    Stop,
    add_budget,
    add_dtype,
    add_engine,
    add_json_lines,
    add_method,
    add_model,
    add_options,
    add_unknown,
    check_json_lines,
    check_writable,
    make_adapter,
    new_parser,
    own_classes,
    say,
    writing,
)
from lessmore.errors import ConfigError

if TYPE_CHECKING:
    from lessmore.cameras.answer import Sink
    from lessmore.cameras.source import FrameSource
    from lessmore.cameras.watch import Watch, WatchOptions

_BROKEN = ("failed", "lost")
SAFE = "camera"
"""The preset that is taken where nothing is said: it does next to no harm to sources that show few classes."""
TINY = (
    "lessmore watch: the embedded model tiny looks for the shapes that it knows; "
    'for real pictures add --model open_clip:ViT-B-16/openai --classes "cat,dog"'
)
EXAMPLES = """examples:
  lessmore watch clip.mp4
  lessmore watch clip.mp4 --model my-model-folder --classes cats.txt --output out.csv
  lessmore watch 0 rtsp://10.0.0.5/stream1 --model my-model-folder --classes "empty,occupied"
  lessmore watch door=rtsp://10.0.0.5/stream1 --model my-model-folder --classes cats.txt --state door/ --resume
  lessmore watch uploads/ --model my-model-folder --classes cats.txt --output out.jsonl --state state/ --resume
  lessmore watch 0 --model my-model-folder --classes cats.txt --save out.mp4 --mqtt mqtt://homeassistant.local

A source is a webcam's number, an rtsp:// or http:// address, a video file, a folder that is watched for new images, or
- for JPEG frames on standard input. NAME=SOURCE names it. Every source is a stream of its own.

Every frame of a file and every image of a folder is answered. Of a camera the newest frame is, and those that came in
between are left out and counted. A camera that breaks off is opened again.

Sources adapt by preset camera, which is made for few classes that stay for a long time. --preset default gains more
where many classes come in no order, and can cost many points of accuracy where they do not.

Ctrl-C ends the watch and saves the states. With --resume the same command goes on where it stopped. The exit code is 3
if a source failed or a frame could not be answered, and 130 if files were left unfinished.
"""


def parser() -> ArgumentParser:
    """Arguments of `lessmore watch`."""
    args = new_parser(__doc__, EXAMPLES)
    args.add_argument("sources", type=str, nargs="+", help="webcam's number, address, video, folder, -, or NAME=SOURCE")
    add_model(args, needed=False)
    add_method(args)
    add_budget(args)
    args.set_defaults(preset=SAFE)
    add_options(args)
    add_engine(args)
    add_unknown(args)
    add_dtype(args)
    _add_selection(args)
    args.add_argument(
        "--output", type=str | None, default=None, help="out.csv, out.jsonl, or - for CSV on standard output"
    )
    _add_outputs(args)
    add_json_lines(args)
    args.add_argument("--state", type=str | None, default=None, help="folder of the states, one file for each source")
    args.add_argument("--resume", action="store_true", help="go on from the states, and in the output")
    args.add_argument("--save-every", type=float, default=30.0, help="seconds between two writes of the states")
    args.add_argument("--max-batch", type=int, default=8, help="sources encoded together; 1 rounds as one alone does")
    args.add_argument("--quiet", action="store_true", help="no lines about sources, and no summary")
    return args


def _add_selection(args: ArgumentParser) -> None:
    args.add_argument("--every", type=float, default=0.0, help="seconds between two frames that are answered")
    when = "motion: only frames in which something has moved since the last answer"
    args.add_argument("--when", type=Literal["always", "motion"], default="always", help=when)
    track = "frames of a scene that does not change get one answer, which gets surer, and adapt the stream once"
    args.add_argument("--track", action="store_true", help=track)
    frames = "newest leaves out frames that are late, all does not; auto is all for files and folders"
    args.add_argument("--frames", type=Literal["auto", "newest", "all"], default="auto", help=frames)
    once = "end when all images of a folder are answered, or a camera breaks off"
    args.add_argument("--once", action="store_true", help=once)
    args.add_argument("--keyframes", action="store_true", help="decode key frames only, which takes far less time")
    args.add_argument("--hardware", type=str, default="none", help="device that decodes, such as cuda or vaapi")


def _add_outputs(args: ArgumentParser) -> None:
    save = "video of the answered frames with their answers; of several sources out-NAME.mp4 for each"
    args.add_argument("--save", type=str | None, default=None, help=save)
    overlay = "tokens: paint into the video of --save where the patches of each frame went"
    args.add_argument("--overlay", type=Literal["none", "tokens"], default="none", help=overlay)
    mqtt = "mqtt://user:password@host:1883/prefix of a broker, or mqtts://; Home Assistant finds the sources by itself"
    args.add_argument("--mqtt", type=str | None, default=None, help=mqtt)
    args.add_argument("--webhook", type=str | None, default=None, help="http(s) address to which answers are posted")
    notify = "what goes to --mqtt and --webhook: answers that differ from the one before, or all"
    args.add_argument("--notify", type=Literal["changes", "all"], default="changes", help=notify)


def run(args: Namespace) -> int:
    """Watch; 0, 3 if something failed, 130 if files were left unfinished."""
    if args.stream is not None and args.preset == SAFE:
        args.preset = "default"  # what --stream says stands in place of the command's own preset
    try:
        from lessmore.cameras import mqtt, video  # noqa: F401  (what the extra brings)
    except ModuleNotFoundError as error:
        raise ConfigError(f"lessmore watch needs {error.name}; pip install 'lessmore[camera]'") from error
    from lessmore.cameras.source import check_stdin, check_webcams, read_sources

    check_json_lines(args)
    _fill_model(args)
    sources = read_sources(args.sources)
    check_stdin(sources)
    check_webcams(sources)
    options = _options(args)
    output = None if args.output in (None, "-") else Path(args.output)
    if output is not None:
        check_writable(output, (".csv", ".jsonl"))
    _check_outputs(args, sources)
    lock = None if options.state is None else _folder(options.state) / "watch"
    with writing(output, lock):
        return _run(args, sources, options, output)


def _fill_model(args: Namespace) -> None:
    """The embedded model on its own classes, where neither is said; one without the other is refused."""
    if args.model is None and args.classes is None:
        args.model = "tiny"
        if not args.quiet:
            say(TINY, error=True)
    if args.model is None:
        raise ConfigError("--classes needs a model that knows such names; add --model open_clip:ViT-B-16/openai, say")
    args.classes = args.classes or ",".join(own_classes(args.model))
    if not args.classes:
        raise ConfigError(f'{args.model} has to be told what to tell apart; add --classes "cat,dog" or a file of names')


def _options(args: Namespace) -> WatchOptions:
    """What the flags ask for."""
    from lessmore.cameras import video
    from lessmore.cameras.reader import ReadingOptions
    from lessmore.cameras.selection import SelectionRules
    from lessmore.cameras.watch import WatchOptions

    video.check_hardware(args.hardware)
    rules = SelectionRules(args.every, args.when == "motion", args.track)
    decoding = video.DecodingOptions(args.keyframes, args.hardware)
    reading = ReadingOptions(rules, decoding, args.frames, args.once)
    state = None if args.state is None else Path(args.state)
    return WatchOptions(reading, args.max_batch, state, args.resume, args.save_every, args.overlay)


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be a folder ({error.strerror}); choose another --state") from error
    return path


def _check_outputs(args: Namespace, sources: list[FrameSource]) -> None:
    """Refuse what can be refused before a model is loaded."""
    from lessmore.cameras.mqtt import mqtt_address
    from lessmore.cameras.webhook import web_address

    if args.mqtt is not None:
        mqtt_address(args.mqtt)
    if args.webhook is not None:
        web_address(args.webhook)
    if args.overlay != "none" and args.save is None:
        raise ConfigError(f"--overlay {args.overlay} is painted into a video; add --save out.mp4")
    if args.save is not None:
        check_writable(Path(args.save), (".mp4",))
        for source in sources:
            _video_path(args, source, sources)


def _video_path(args: Namespace, source: FrameSource, sources: list[FrameSource]) -> Path:
    """The video of a source; one that goes on begins another part."""
    from lessmore.cameras.recording import next_part

    base = Path(args.save)
    path = base if len(sources) == 1 else base.with_stem(f"{base.stem}-{source.name}")
    if path.exists() and not args.resume:
        raise ConfigError(f"{path} is there already; remove it, or choose another --save")
    return next_part(path)


def _run(args: Namespace, sources: list[FrameSource], options: WatchOptions, output: Path | None) -> int:
    from lessmore.cameras.watch import Watch
    from lessmore.cli.watch_rows import continue_rows

    sinks: list[Sink] = []
    watch = Watch(make_adapter(args), sources, options, sinks)
    if output is not None:
        continue_rows(output, watch.streams, args.resume)
    try:
        _add_sinks(args, sources, watch, sinks)
        with Stop() as stop:
            watch.run(lambda: stop.asked)
    finally:
        for sink in sinks:
            sink.close()
    _summary(watch, args.quiet)
    return _code(watch)


def _add_sinks(args: Namespace, sources: list[FrameSource], watch: Watch, sinks: list[Sink]) -> None:
    """Open what was asked for. Rows come first: what cannot be written is not announced."""
    from lessmore.cameras.mqtt import MqttSink
    from lessmore.cameras.recording import AnnotatedVideo
    from lessmore.cameras.webhook import Webhook
    from lessmore.cli.watch_lines import WatchLines, output_for
    from lessmore.cli.watch_rows import RowSink

    if args.output is not None or args.json:
        sinks.append(RowSink(args.output or "-", args.json))
    if args.save is not None:
        sinks.extend(AnnotatedVideo(_video_path(args, source, sources), source.name) for source in sources)
    if args.mqtt is not None:
        sinks.append(MqttSink(args.mqtt, [source.name for source in sources], args.notify))
    if args.webhook is not None:
        sinks.append(Webhook(args.webhook, args.notify))
    if not args.quiet:
        sinks.append(WatchLines(watch.streams, output_for("-" if args.json else args.output)))


def _summary(watch: Watch, quiet: bool) -> None:
    from lessmore.cli.watch_lines import dropped_text

    for stream in () if quiet else watch.streams:
        counts = stream.counts
        parts = [f"{counts['answered']} frames answered, {counts['changed']} changed by adaptation"]
        parts += [f"{counts[what]} {what}" for what in ("failed", "refused") if counts[what]]
        parts += [f"{stream.reader.reconnects} times opened again"] if stream.reader.reconnects else []
        changes = stream.adapter.health().domain_changes
        parts += [f"{changes} changes of domain"] if changes else []
        left = dropped_text(stream)
        parts += [f"left out: {', '.join(left)}"] if left else []
        parts += [stream.reader.why] if stream.reader.condition in _BROKEN else []
        say(f"lessmore watch: {stream.source.name}: {'; '.join(parts)}", error=True)
    for problem in watch.problems:
        say(f"lessmore watch: {problem}", error=True)


def _code(watch: Watch) -> int:
    failed = [one for one in watch.streams if one.reader.condition in _BROKEN or one.counts["failed"]]
    if failed or watch.problems or any(one.counts["refused"] for one in watch.streams):
        return SOME_FAILED
    left = any(one.source.kind == "file" and not one.finished for one in watch.streams)
    return INTERRUPTED if left else OK
