from typing import Any

from ._arrays import Form
from ._registry import FusedStart, Start

def frozen(value: Any, depth: int = ...) -> Any: ...

class Repeats:
    capacity: int
    def __init__(self, capacity: int) -> None: ...
    def __len__(self) -> int: ...
    def clear(self) -> None: ...
    def find(
        self, given: tuple[Any, ...], first: Any, second: Any, out: Any, accumulate: bool, packed_at: int
    ) -> Any: ...
    def keep(
        self,
        given: tuple[Any, ...],
        first: Form,
        second: Form,
        out: Form | None,
        accumulate: bool,
        packed_at: int,
        call: Any,
        start: Start | None,
        allocates: bool,
    ) -> None: ...
    def serve(
        self,
        op: str,
        first: Any,
        second: Any,
        shape_argument: Any,
        strides: Any,
        padding: Any,
        dilations: Any,
        groups: Any,
        data_format: Any,
        filter_format: Any,
        out_dtype: Any,
        algorithm: Any,
        out: Any,
        num_threads: Any,
        accumulate: Any,
        /,
    ) -> Any: ...
    def keep_fused(
        self,
        given: tuple[Any, ...],
        first: Form,
        second: Form,
        out: Form | None,
        static: Any,
        packed: bool,
        call: Any,
        start: FusedStart,
        allocates: bool,
    ) -> None: ...
    def serve_fused(
        self,
        image: Any,
        weights: Any,
        bias: Any,
        side: Any,
        conv_scale: Any,
        side_scale: Any,
        activation: Any,
        alpha: Any,
        input_zero_point: Any,
        output_zero_point: Any,
        strides: Any,
        padding: Any,
        dilations: Any,
        groups: Any,
        data_format: Any,
        filter_format: Any,
        out_dtype: Any,
        algorithm: Any,
        out: Any,
        num_threads: Any,
        /,
    ) -> Any: ...
