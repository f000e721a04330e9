"""Special functions: rows of `pointwise.special`."""

from __future__ import annotations

from mojo_runtime.aten.table import FLOATING, Pointwise, Row

# Whose argument is named x.
_OF_X = frozenset(
    [
        "special_scaled_modified_bessel_k0",
        "special_scaled_modified_bessel_k1",
        "special_spherical_bessel_j0",
        "special_airy_ai",
    ]
)
# The aten op, the kernel's op, what it is.
_UNARY = (
    ("angle", "angle", "Angle of the point (re, im): 0 or pi for reals."),
    ("i0", "i0", "Modified Bessel function I0."),
    ("special_i0e", "i0e", "Modified Bessel function I0, times exp(-|x|)."),
    ("special_i1", "i1", "Modified Bessel function I1."),
    ("special_i1e", "i1e", "Modified Bessel function I1, times exp(-|x|)."),
    ("special_bessel_j0", "j0", "Bessel function J0."),
    ("special_bessel_j1", "j1", "Bessel function J1."),
    ("special_bessel_y0", "y0", "Bessel function Y0."),
    ("special_bessel_y1", "y1", "Bessel function Y1."),
    ("special_modified_bessel_i0", "i0", "Modified Bessel function I0."),
    ("special_modified_bessel_i1", "i1", "Modified Bessel function I1."),
    ("special_modified_bessel_k0", "k0", "Modified Bessel function K0."),
    ("special_modified_bessel_k1", "k1", "Modified Bessel function K1."),
    ("special_scaled_modified_bessel_k0", "k0e", "Modified Bessel function K0, times exp(x)."),
    ("special_scaled_modified_bessel_k1", "k1e", "Modified Bessel function K1, times exp(x)."),
    ("special_spherical_bessel_j0", "spherical_j0", "Spherical Bessel function j0."),
    ("special_airy_ai", "airy_ai", "Airy function Ai."),
    ("special_erfcx", "erfcx", "exp(x^2) erfc(x)."),
    ("special_log_ndtr", "log_ndtr", "Logarithm of the normal distribution function."),
    ("special_ndtri", "ndtri", "Inverse of the normal distribution function."),
)
_POLYNOMIALS = (
    ("chebyshev_polynomial_t", "t", "Chebyshev polynomial of the first kind"),
    ("chebyshev_polynomial_u", "u", "Chebyshev polynomial of the second kind"),
    ("chebyshev_polynomial_v", "v", "Chebyshev polynomial of the third kind"),
    ("chebyshev_polynomial_w", "w", "Chebyshev polynomial of the fourth kind"),
    ("hermite_polynomial_h", "hermite_h", "Hermite polynomial, physicists'"),
    ("hermite_polynomial_he", "hermite_he", "Hermite polynomial, probabilists'"),
    ("laguerre_polynomial_l", "laguerre_l", "Laguerre polynomial"),
    ("legendre_polynomial_p", "legendre_p", "Legendre polynomial"),
)


def _binary(name: str, op: str, inputs: tuple[str, str], promotion: str, doc: str, shifted: bool = False) -> Pointwise:
    return Pointwise(
        name=name,
        kernel="pointwise.special:binary",
        op=op,
        dtypes=FLOATING,
        inputs=inputs,
        promotion="float" if promotion == "float" else "common",
        parameters=(("shifted", True),) if shifted else (),
        doc=doc,
    )


ROWS: tuple[Row, ...] = (
    *(
        Pointwise(
            name=f"{name}.out",
            kernel="pointwise.special:unary",
            op=op,
            dtypes=FLOATING,
            inputs=("x",) if name in _OF_X else ("self",),
            promotion="float",
            complex="real[op=angle]" if op == "angle" else "",
            doc=doc,
        )
        for name, op, doc in _UNARY
    ),
    _binary("special_zeta.out", "zeta", ("self", "other"), "float", "Hurwitz zeta function."),
    _binary("igamma.out", "igamma", ("self", "other"), "common", "Regularized lower incomplete gamma function."),
    _binary("igammac.out", "igammac", ("self", "other"), "common", "Regularized upper incomplete gamma function."),
    *(_binary(f"special_{name}.out", op, ("x", "n"), "float", f"{doc} of degree n.") for name, op, doc in _POLYNOMIALS),
    *(
        _binary(f"special_shifted_{name}.out", op, ("x", "n"), "float", f"{doc} of degree n at 2 x - 1.", shifted=True)
        for name, op, doc in _POLYNOMIALS[:4]
    ),
    Pointwise(
        name="polygamma.out",
        kernel="pointwise.special:derivatives",
        op="",
        dtypes=FLOATING,
        scalars=("n",),
        promotion="float",
        doc="A derivative of the digamma function.",
    ),
)
