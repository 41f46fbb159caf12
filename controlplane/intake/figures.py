"""Figures measured from public traces, from which the generator makes workloads. Facts only: no row of a trace is here.

Each table says where it was measured; :mod:`controlplane.intake.calibrate` measures all of them again, and a test holds
the two together. Shares are parts per million and are rounded down, so that they may add up to a little less.
"""

from __future__ import annotations

from dataclasses import dataclass

Quantiles = tuple[int, ...]
"""One value for each of :data:`POSITIONS`."""
Weighted = tuple[tuple[int, int], ...]
"""(value, parts per million)."""
Shapes = tuple[tuple[int, int, int], ...]
"""(milli-CPU, MiB of memory, parts per million)."""

POSITIONS = (
    *(0, 10_000, 50_000, 100_000, 200_000, 300_000, 400_000, 500_000, 600_000, 700_000, 800_000),
    *(900_000, 925_000, 950_000, 970_000, 980_000, 990_000, 995_000, 998_000, 999_000, 999_500, 1_000_000),
)
"""Where distributions are measured, in parts per million of the sorted values: denser where the tail weighs most."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a workload looks like."""

    hours: tuple[int, ...]
    """Share of submissions in each hour of the trace's clock. Philly, 82,247 jobs, September to December 2017."""
    weekdays: tuple[int, ...]
    """Share of submissions on each day from Monday. Philly."""
    sweeps: Weighted
    """Jobs that were submitted together (same virtual cluster and size, gaps of at most ten seconds); a size stands for
    all sizes up to the next. Philly; the largest had 423."""
    queue_shares: tuple[int, ...]
    """Share of submissions of each of the 15 virtual clusters, largest first. Philly."""
    sizes: Weighted
    """GPUs of a job. Philly."""
    runtimes_s: dict[int, Quantiles]
    """Seconds of a run, for jobs of so many GPUs and up to the next class. Philly."""
    fraction_runtimes_s: Quantiles
    """The same for pods on a fraction of a GPU. openb default, 8,152 pods; services run for months."""
    cpu_runtimes_s: Quantiles
    """The same for pods without GPUs. openb default."""
    fractions: Weighted
    """Milli-GPU of pods that ask for less than one. openb default."""
    whole_shapes: Shapes
    """The six commonest requests per GPU of pods on whole GPUs. openb default."""
    fraction_shapes: Shapes
    """The six commonest requests of pods on a fraction. openb default."""
    cpu_shapes: Shapes
    """The six commonest requests of pods without GPUs. openb default."""
    cpu_only_ppm: int
    """Pods without GPUs among all. openb default."""
    fraction_ppm: int
    """Pods on a fraction among those on one GPU or less. openb default."""
    failed_ppm: int
    """Failed pods among those that ever started. openb default."""
    estimate_percent: Quantiles
    """Time asked for, in per cent of the time used. HPC2N 2002, 3,145 jobs; below 100 the job outlived its request."""


MEASURED = Figures(
    hours=(
        53_096,
        41_022,
        46_627,
        45_959,
        29_180,
        48_026,
        69_692,
        87_042,
        46_226,
        41_910,
        42_676,
        36_220,
        31_210,
        29_362,
        26_566,
        27_040,
        36_730,
        27_830,
        33_362,
        30_347,
        42_348,
        38_202,
        47_235,
        42_080,
    ),
    weekdays=(123_238, 152_321, 162_559, 183_763, 206_135, 87_018, 84_963),
    sweeps=(
        (1, 730_063),
        (2, 121_323),
        (3, 62_444),
        (4, 27_112),
        (5, 15_630),
        (6, 17_577),
        (8, 8_599),
        (10, 5_968),
        (13, 3_110),
        (17, 3_136),
        (25, 1_896),
        (41, 2_478),
        (100, 657),
    ),
    queue_shares=(
        501_246,
        195_642,
        121_013,
        90_252,
        23_514,
        18_371,
        17_447,
        13_824,
        8_790,
        5_130,
        4_547,
        97,
        48,
        36,
        36,
    ),
    sizes=(
        (1, 931_669),
        (2, 22_104),
        (4, 22_736),
        (8, 19_976),
        (12, 85),
        (16, 2_419),
        (24, 85),
        (32, 814),
        (64, 72),
        (128, 36),
    ),
    runtimes_s={
        1: (
            1,
            30,
            52,
            62,
            76,
            215,
            600,
            1_117,
            1_728,
            2_464,
            3_754,
            8_512,
            11_166,
            19_137,
            44_229,
            68_245,
            135_386,
            266_433,
            499_087,
            863_786,
            1_443_363,
            3_256_045,
        ),
        2: (
            2,
            5,
            9,
            11,
            15,
            17,
            19,
            21,
            25,
            33,
            148,
            72_361,
            123_925,
            197_004,
            266_440,
            343_700,
            510_066,
            786_523,
            1_397_988,
            1_463_703,
            1_521_148,
            2_582_803,
        ),
        4: (
            3,
            35,
            75,
            136,
            400,
            1_695,
            7_457,
            17_388,
            36_253,
            78_636,
            106_275,
            184_426,
            196_070,
            273_515,
            449_318,
            528_732,
            906_798,
            1_192_621,
            1_792_395,
            2_416_865,
            2_641_566,
            2_750_674,
        ),
        8: (
            1,
            33,
            125,
            216,
            783,
            3_940,
            12_351,
            23_683,
            64_753,
            140_659,
            202_915,
            350_272,
            407_711,
            525_503,
            661_299,
            792_895,
            1_051_666,
            1_961_780,
            2_214_025,
            2_655_194,
            2_658_784,
            4_628_226,
        ),
        12: (
            1,
            2,
            35,
            69,
            345,
            880,
            3_165,
            21_137,
            53_301,
            72_685,
            158_329,
            246_825,
            326_868,
            438_912,
            511_238,
            610_860,
            891_298,
            1_152_387,
            1_369_876,
            1_369_876,
            1_369_876,
            1_710_643,
        ),
    },
    fraction_runtimes_s=(
        4,
        14,
        35,
        55,
        103,
        173,
        288,
        539,
        928,
        1_281,
        2_863,
        9_153,
        12_507,
        20_153,
        31_053,
        49_498,
        75_954,
        193_496,
        3_231_252,
        3_425_986,
        6_508_423,
        12_475_899,
    ),
    cpu_runtimes_s=(
        33,
        59,
        94,
        141,
        147,
        175,
        273,
        492,
        804,
        1_447,
        2_578,
        13_096,
        16_841,
        19_815,
        21_848,
        25_080,
        28_362,
        37_471,
        92_162,
        1_276_174,
        3_940_683,
        10_143_284,
    ),
    fractions=(
        (50, 2_274),
        (110, 7_797),
        (140, 324),
        (160, 24_041),
        (220, 20_142),
        (230, 45_484),
        (270, 1_299),
        (290, 324),
        (320, 106_562),
        (330, 2_274),
        (350, 1_949),
        (370, 15_269),
        (440, 649),
        (460, 41_585),
        (470, 243_664),
        (480, 6_172),
        (550, 23_391),
        (590, 24_366),
        (650, 82_196),
        (810, 350_227),
    ),
    whole_shapes=(
        (11_300, 49_152, 347_104),
        (11_400, 48_128, 216_281),
        (3_152, 5_600, 190_360),
        (18_708, 64_512, 103_280),
        (9_810, 41_560, 78_979),
        (12_000, 24_576, 63_993),
    ),
    fraction_shapes=(
        (3_152, 5_600, 407_111),
        (11_908, 47_104, 226_777),
        (8_000, 30_517, 176_342),
        (4_000, 22_888, 68_577),
        (4_000, 15_258, 66_037),
        (4_152, 10_600, 55_152),
    ),
    cpu_shapes=(
        (12_500, 57_344, 351_012),
        (32_000, 49_152, 273_866),
        (8_000, 30_517, 157_184),
        (15_400, 51_200, 115_718),
        (16_500, 51_200, 91_610),
        (8_000, 15_625, 10_607),
    ),
    cpu_only_ppm=133_464,
    fraction_ppm=440_406,
    failed_ppm=257_753,
    estimate_percent=(
        9,
        93,
        99,
        99,
        104,
        133,
        164,
        224,
        416,
        964,
        4_000,
        47_619,
        80_000,
        236_842,
        600_000,
        914_000,
        1_800_000,
        3_645_000,
        5_760_000,
        6_000_000,
        7_200_000,
        9_600_000,
    ),
)
