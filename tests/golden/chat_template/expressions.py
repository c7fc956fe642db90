# SPDX-License-Identifier: Apache-2.0
"""Small templates for make_golden.py: one construct each."""

VARS = {
    "s": "Hello, World",
    "u": "h\u00e9llo \u4f60\u597d \U0001F600 stra\u00dfe",
    "sp": "  \t padded \u00a0\n",
    "q": "it's \"quoted\" \\ back\nline\ttab \u200b\u00e9\u0007",
    "html": "<a href=\"x\">T&C's</a>",
    "lines": "one\r\ntwo\n\nthree\rfour\u2028five",
    "e": "",
    "i": 42,
    "n": -7,
    "z": 0,
    "f": 3.14159,
    "g": 1e21,
    "h": 0.1,
    "t": True,
    "fa": False,
    "no": None,
    "l": [3, 1, 2],
    "ls": ["b", "A", "c", "a"],
    "le": [],
    "nested": [[1, 2], [3, 4], [5]],
    "d": {"a": 1, "b": "two", "c": None, "items": "shadow"},
    "de": {},
    "deep": {"x": {"y": [10, {"z": "zed"}]}},
    "users": [
        {"name": "Ann", "age": 31, "admin": True, "tags": ["x"]},
        {"name": "bob", "age": 25, "admin": False},
        {"name": "Cid", "age": 31, "admin": True, "boss": {"name": "Ann"}},
        {"name": "ann", "age": 19},
    ],
    "tool": {"name": "f", "parameters": {"type": "object", "properties": {"p": {"type": "string",
             "description": "A \"p\" \u00e9"}}, "required": ["p"]}, "n": 1.0, "ok": False, "x": None},
    "big": 9007199254740993,
    "tok": "<|im_end|>",
}

EXPRESSIONS = r'''
s
u
i
f
g
h
t
no
missing
l
d
nested
users
tool
q
[q]
[1, 'a', none, true, 2.0, u]
(1,)
()
(1, 2)
1, 2
{'a': 1, 2: 'b', 3.5: none, none: [], true: ()}
{1: 'a', 1.0: 'b', true: 'c'}
'a' 'b' "c"
'\n\t\\\'\"\x41\u00e9\U0001F600\101\q\a'
'\é'
"it's"
["it's", 'say "hi"', 'both \' and "']
1_000 + 0x_ff + 0b101 + 0o17
1.5e3
1e-7
1e16
1e15
123456789012345678.0
0.1 + 0.2
1 / 3
-0.0
2.5e-5
100000.0
1e22
5e-324
1.7976931348623157e308
1e400
1e400 - 1e400
-1e400
i + 1
i - 50
i * 2
i / 4
i // 5
n // 2
n % 3
7 % -3
-7 // -2
7.5 // 2
-7.5 % 2
7.5 % -2
2 ** 10
2 ** -1
2 ** 0.5
2 ** 3 ** 2
-2 ** 2
(-2) ** 2
(-1) ** 101
0 ** 0
true + true
t * 3
i / 0
i // 0
i % 0
1.0 / 0
1.0 // 0
1.0 % 0
0 ** -1
4.0 // 0.5
-0.0 // 1
i ~ s ~ none ~ 1.5
'a' ~ missing ~ 'b'
s + 'x'
s + 1
1 + s
s * 2
2 * s
s * -1
'ab' * 0
[1] * 3
3 * [1, 2]
[1] + [2]
(1,) + (2,)
[1] + (2,)
none + 'a'
missing + 1
- 'a'
-true
+i
--i
not i
not not i
not missing
i > 3
i > 3 > 2
1 < 2 < 3
1 < 3 < 2
1 == 1.0
true == 1
'a' < 'b'
'a' < 1
1 < 'a'
none < 1
[1, 2] < [1, 3]
[1, 2] < [1, 2, 0]
(1, 2) == (1, 2)
[1] == (1,)
{'a': 1} == {'a': 1.0}
{'a': 1} == {'b': 1}
none == missing
missing == missing2
missing != 1
missing < 1
'ell' in s
'x' not in s
1 in l
'1' in l
1 in 'abc'
'a' in d
'z' in d
none in d
[1] in d
1 in none
1 in 5
'a' in missing
(1, 2) in [(1, 2)]
1 not in l and true
not 1 in l
big
big == 9007199254740992.0
big > 9007199254740992.0
9223372036854775807
-9223372036854775807 - 1
true and 'yes'
false and 'no'
'' or 'default'
none or missing or 0
0 or none
i and s
1 if true else 2
1 if false else 2
1 if false
(1 if false) is defined
(1 if false) is undefined
'a' if e else 'b' if i else 'c'
s|length if s else 0
s[0]
s[-1]
s[99]
s[0:5]
s[:-1]
s[::2]
s[::-1]
s[-3:]
s[5:2]
s[5:2:-1]
s[2:99]
s[-99:3]
s[none:3]
s['a':3]
s[::0]
u[1]
u[6]
u[1:8]
u[::-1]
u[9]
u[::3]
u[-2::-2]
u|length
l[0]
l[-1]
l[5]
l[1:]
l[::-1]
l[:2]
l[true]
l['x']
(1, 2, 3)[1:]
(1, 2, 3)[0]
nested[0][1]
nested.0.1
nested[1]['x']
d.a
d['b']
d.b.upper()
d.zz
d['zz']
d.zz.yy
d.zz is defined
d.items
d['items']
d.items()
d.keys()
d.values()
d.items()|list
d.get('a')
d.get('zz')
d.get('zz', 5)
d.get('zz', default=5)
d.get()
d.keys()|list
d.values()|list
d.items()|length
d[none]
d[1]
d[[1]]
de
de.x
deep.x.y[1].z
deep['x']['y'][0]
deep.x['y'].1.z
deep.x.q.r
none.x
none['x']
i.x
i['x']
s.x
s['upper']()
missing.x
missing['x']
missing()
missing[0]
s.__class__
s.__class__.__mro__
s.__class__ is defined
d.__class__()
d._x
l.append
l.append(1)
d.update({'a': 2})
d.pop('a')
l.pop()
l.sort()
l.append is defined
l.count(1)
l.index(2)
l.index(9)
(1, 2, 1).count(1)
(1, 2, 1).index(2)
l.copy()
d.copy()
i()
s()
'x'.upper()
s.upper()
s.lower()
u.upper()
u.title()
u.capitalize()
u.swapcase()
'ΑΣ ΟΔΟΣ Σ'.lower()
'ΌΣΟΣ'|lower
'ǆ ﬁ ŉ'.title()
'ǆabc'.capitalize()
'İI'.lower()
"they're bill's".title()
"they're bill's"|title
'hello-world (foo) [bar] {baz} <qux>'|title
'HELLO wORLD'|capitalize
sp.strip()
[sp.lstrip()]
[sp.rstrip()]
sp|trim
'xxhixx'.strip('x')
'xyhixy'.strip('yx')
'ééaéé'.strip('é')
'xxhixx'.lstrip('x')
'xxhixx'.rstrip('x')
'xxhixx'|trim('x')
'  a '.strip(none)
'a'.strip(1)
s.split()
'a b  c'.split(' ')
' a  b c '.split()
' a  b c '.split(none, 1)
'a,b,c'.split(',', 1)
'a,b,c'.split(',', maxsplit=1)
'a,b,c'.split(sep=',')
'a,b,c'.rsplit(',', 1)
' a  b c '.rsplit(none, 1)
' a  b c '.rsplit()
'aXXbXX'.split('XX')
'aXXbXX'.rsplit('XX', 1)
'a'.split('')
''.split()
''.split(',')
lines.splitlines()
lines.splitlines(true)
'a\n'.splitlines()
'<think>x</think>y'.split('</think>')[-1].lstrip('\n')
'a=b=c'.partition('=')
'a=b=c'.rpartition('=')
'abc'.partition('=')
'abc'.rpartition('=')
'abc'.startswith('a')
'abc'.startswith(('x', 'ab'))
'abc'.startswith('b', 1)
'abc'.startswith('c', -1)
'abc'.startswith('')
'abc'.startswith('', 4)
'abc'.startswith(1)
'abc'.endswith('bc')
'abc'.endswith(('x', 'y'))
'abc'.endswith('b', 0, 2)
'abcabc'.replace('b', 'X')
'abcabc'.replace('b', 'X', 1)
'abc'.replace('', '-')
'abc'.replace('', '-', 2)
'éa'.replace('', '-')
'aaa'.replace('aa', 'b')
'abc'.replace('x', 'y')
'abc'.replace(1, 2)
'abc'|replace('b', 1)
123|replace(2, 'x')
none|replace('o', '0')
'aaaa'|replace('a', 'b', 2)
'abcabc'.find('c')
'abcabc'.rfind('c')
'abcabc'.find('c', 3)
'abcabc'.find('x')
'abcabc'.find('c', -2)
'abc'.find('', 3)
'abc'.find('', 4)
'abc'.rfind('')
u.find('😀')
u.rfind('l')
'abcabc'.index('b')
'abcabc'.rindex('b')
'abc'.index('x')
'abcabc'.count('b')
'aaaa'.count('aa')
'abc'.count('')
'abcabc'.count('b', 2)
'-'.join(['a', 'b'])
'-'.join('abc')
'-'.join([1, 2])
'-'.join(d)
''.join([])
'abc'.removeprefix('a')
'abc'.removeprefix('b')
'abc'.removesuffix('c')
'abc'.removesuffix('abc')
'7'.zfill(3)
'-7'.zfill(4)
'+a'.zfill(1)
'ab'.center(7)
'ab'.center(6, '*')
'abc'.center(6)
'ab'.ljust(5) ~ '|'
'ab'.rjust(5, '.')
'ab'.center(3, 'xy')
'a\tb'.expandtabs()
'a\tbb\tc\n\td'.expandtabs(4)
'123'.isdigit()
'12³'.isdigit()
'½'.isnumeric()
'٣'.isdecimal()
'٣'|int
'abc'.isalpha()
'ab1'.isalpha()
'ab1'.isalnum()
''.isalpha()
'ABC'.isupper()
'AbC'.isupper()
'ab c'.islower()
' \n'.isspace()
'Ab Cd'.istitle()
'ab_1'.isidentifier()
'1ab'.isidentifier()
'a\n'.isprintable()
'aé'.isascii()
'abc'.encode()
'abc'.nosuch()
'abc'.upper(1)
'{} and {}'.format('a', 1)
'{1} {0}'.format('a', 1)
'{name}!'.format(name='x')
'{0.a} {0[b]}'.format(d)
'{0[1]}'.format(l)
'{!r:>8}|{:^7}|{:<5}|'.format('a', 'b', 'c')
'{:5d}|{:<5d}|{:05d}|{:+d}|{:,}|{:_}'.format(42, 42, 42, 42, 1234567, 1234567)
'{:x} {:#X} {:b} {:#o} {:c}'.format(255, 255, 5, 8, 65)
'{:.2f} {:8.3f} {:e} {:g} {:.0f} {:%}'.format(3.14159, 2.5, 12345.678, 0.0001, 2.5, 0.25)
'{:.3} {:.3} {:10}|'.format(3.14159, 1234567.0, 2.5)
'{:.3} {:.2}'.format('abcdef', 123.0)
'{:*^9}'.format('mid')
'{:{w}}|'.format('a', w=4)
'{{}} {}'.format(1)
'{} {0}'.format(1)
'{}'.format()
'{x}'.format(y=1)
'{'.format()
'}'.format()
'{:d}'.format('a')
'{:s}'.format(1)
'{}'.format(none)
'{:5}'.format(none)
'{} {}'.format(true, [1])
'{:d}'.format(true)
'{!s} {!r} {!a}'.format('é', 'é', 'é')
'{:,.2f}'.format(1234567.891)
'{:-^5}{:=+5d}'.format('a', 3)
'%s' % 'a'
'%s and %d' % ('a', 3)
'%5.1f|%-5s|%05d|%+d|% d' % (3.14159, 'a', 42, 42, 42)
'%x %X %o %#x %#o %e %G %c %c %r %%' % (255, 255, 8, 255, 8, 12345.678, 1e-10, 65, 'z', 'q')
'%(a)s %(b)s' % d
'%d' % 3.99
'%d' % 'a'
'%s' % ('a', 'b')
'%s %s' % 'a'
'%s' % [1, 2]
'%.2s' % 'abcdef'
'%*d' % (5, 42)
'%q' % 1
'%' % 1
'abc' % 1
'abc' % ()
'abc' % d
'%s'|format('x')
'%s %s'|format('x', 1)
'%(k)s'|format(k='v')
'%a' % 'é'
s|upper
i|upper
none|lower
missing|upper
s|length
l|length
d|count
i|length
none|length
missing|length
range(3)|length
l|first
l|last
le|first
le|last
s|first
s|last
d|first
d|last
d.items()|last
missing|first
missing|last
none|first
i|first
l|map('string')|first
l|map('string')|last
l|join
l|join(', ')
ls|join('-')
users|join(', ', attribute='name')
s|join('.')
none|join
missing|join
[none, true, 1.5]|join('|')
d|join(',')
nested|map('join', '-')|join(';')
l|list
s|list
d|list
missing|list
none|list
range(5)|list
l|sort
l|sort(reverse=true)
ls|sort
ls|sort(case_sensitive=true)
ls|sort(true, true)
users|sort(attribute='age')|map(attribute='name')|list
users|sort(attribute='age,name')|map(attribute='name')|list
users|sort(reverse=true, attribute='age')|map(attribute='name')|list
[1, 'a']|sort
[none, none]|sort
[2, 1.5, true]|sort
d|dictsort
d|dictsort(true)
d|dictsort(by='value')
{'b': 2, 'A': 1}|dictsort
{'b': 2, 'A': 1}|dictsort(true)
{'b': 1, 'A': 2}|dictsort(by='value', reverse=true)
d|dictsort(by='zzz')
l|dictsort
l|reverse
l|reverse|list
s|reverse
u|reverse
d|reverse|list
missing|reverse|list
i|reverse
l|map('string')|reverse
ls|unique|list
ls|unique(true)|list
users|unique(attribute='age')|map(attribute='name')|list
[[1], [1]]|unique|list
l|min
l|max
ls|min
ls|max
ls|max(true)
le|min
users|max(attribute='age')
users|min(attribute='age')
[1, 'a']|max
l|sum
le|sum
l|sum(start=10)
users|sum(attribute='age')
[[1], [2]]|sum(start=[])
['a']|sum
['a', 'b']|sum(start='')
[0.1, 0.2]|sum
l|map('string')|list
l|map('multiply', 2)|list
l|map('nosuch')|list
l|map('nosuch')|length
l|map('default', 1)|list
l|map|list
ls|map('upper')|list
ls|map('replace', 'a', 'x')|list
users|map(attribute='name')|list
users|map(attribute='boss.name')|list
users|map(attribute='tags.0', default='none')|list
users|map(attribute='boss.name', default='nobody')|list
users|map(attribute='name', foo=1)|list
nested|map(attribute=0)|list
nested|map('first')|list
nested|map('sum')|list
missing|map('upper')|list
none|map('upper')|list
i|map('upper')|list
l|map('upper')
[0, 1, '', 'a', none, []]|select|list
[0, 1, '', 'a', none, []]|reject|list
l|select('odd')|list
l|reject('odd')|list
l|select('gt', 1)|list
l|select('>', 1)|list
l|select('in', [1, 2])|list
l|select('divisibleby', 3)|list
l|select('nosuch')|list
users|selectattr('admin')|map(attribute='name')|list
users|rejectattr('admin')|map(attribute='name')|list
users|selectattr('age', 'equalto', 31)|map(attribute='name')|list
users|selectattr('age', '==', 31)|list|length
users|selectattr('admin', 'defined')|list|length
users|rejectattr('boss', 'undefined')|map(attribute='name')|list
users|selectattr('boss.name', 'eq', 'Ann')|map(attribute='name')|list
users|selectattr('name', 'in', ['Ann', 'Cid'])|list|length
users|selectattr|list
users|selectattr('age', 'gt', 20)|first
[users, users]|map('length')|list
users|groupby('age')|map('first')|list
users|groupby('name')|map('list')|map('first')|list
users|groupby('admin', default=false)|map('first')|list
users|groupby('age')|first
(users|groupby('age')|first).grouper
(users|groupby('age')|first).list|length
(users|groupby('name', case_sensitive=true))|length
range(7)|batch(3)|list
range(7)|batch(3, 'x')|list
range(7)|slice(3)|list
range(7)|slice(3, 'x')|list
range(2)|slice(4)|list
range(7)|slice(0)|list
range(3)|batch(0)|list
l|batch(2)
d|items|list
missing|items|list
l|items|list
missing|default('x')
missing|default
no|default('x')
no|default('x', true)
e|d('y', true)
d.zz|d('q')
d.zz.yy|default('q')
'42'|int
'42.9'|int
' 42 '|int
'-0'|int
'abc'|int
'abc'|int(7)
'0x1f'|int(0, 16)
'0x1f'|int(base=16)
'1f'|int(base=16)
'0b11'|int(base=0)
'010'|int(base=0)
'1_000'|int
'1__0'|int
'1e3'|int
'inf'|int
'nan'|int(5)
3.99|int
-3.99|int
true|int
none|int
missing|int
[1]|int(3)
(1e400)|int
'3.5'|float
'abc'|float
'abc'|float(1.5)
'1_0.5'|float
' .5 '|float
'5.'|float
'1e5'|float
'inf'|float
'-Infinity'|float
'nan'|float
5|float
none|float
missing|float
true|float
n|abs
-2.5|abs
'a'|abs
true|abs
3.14159|round
3.14159|round(2)
2.5|round
3.5|round
-2.5|round
2.675|round(2)
1234.5|round(-2)
1250.0|round(-2)
12.0|round(-2)
60.0|round(-2)
1e300|round(-299)
42|round
42|round(2)
45|round(-1)
55|round(-1)
-45|round(-1)
42.55|round(1, 'floor')
42.55|round(1, 'ceil')
42|round(0, 'ceil')
42.5|round(method='floor')
-42.5|round(0, 'floor')
3.1|round(-1, 'ceil')
3.1|round(1, 'bad')
'a'|round
true|round
1e16|round(2)
0.5|round(400)
1.23456789|round(7)
s|string
i|string
l|string
no|string
missing|string
d|string
s|e
html|e
html|escape
html|e|e
html|forceescape
html|e|forceescape
html|safe
html|safe|e
i|e
(html|e) + '<b>'
'<b>' + (html|e)
('<i>'|safe) + '<b>'
('<i>'|safe) ~ '<b>'
('<i>%s</i>'|safe) % '<x>'
('<i>%s%s</i>'|safe) % ('<x>', '<y>'|safe)
('<i>{}</i>'|safe).format('<x>')
('a'|safe) * 2 + '<'
['<a>'|safe]
('<a>'|safe)|upper + '<'
('<a>'|safe)|string + '<'
('<a>'|safe)|replace('a', '<') + '<'
('<a>'|safe).replace('a', '<')
('<a>'|safe).join(['<', 'x'])
('<a>'|safe)[1:] + '<'
('<'|safe) is string
('<'|safe) == '<'
('<'|safe) is escaped
'<' is escaped
s|truncate(8)
s|truncate(8, true)
s|truncate(8, true, '!', 0)
s|truncate(8, false, '..', 0)
s|truncate(11)
s|truncate(2)
'foo bar baz qux'|truncate(9)
'foo bar baz qux'|truncate(11, false, '...', 0)
'a\nb\n\nc'|indent
'a\nb\n\nc'|indent(2)
'a\nb\n\nc'|indent(2, true)
'a\nb\n\nc'|indent(2, true, true)
'a\nb\n\nc\n'|indent(1, blank=true)
'a\nb'|indent('>> ')
'a\nb'|indent(width=3, first=true)
''|indent(2, true)
i|indent
s|center(20) ~ '|'
s|wordcount
u|wordcount
s|urlencode
'a/b c?d=é&'|urlencode
s|nosuch
s is nosuch
(s|nosuch) if false else 'ok'
'ok' if true else (s|nosuch)
s is defined
missing is defined
missing is undefined
s is not defined
no is none
no is not none
missing is none
s is string
i is string
i is number
f is number
t is number
s is number
i is integer
t is integer
f is float
i is float
t is boolean
no is boolean
t is true
1 is true
fa is false
0 is false
d is mapping
l is mapping
l is iterable
s is iterable
i is iterable
missing is iterable
d is iterable
none is iterable
l is sequence
s is sequence
d is sequence
(1,) is sequence
i is sequence
missing is sequence
d.items() is sequence
range(3) is sequence
l|map('string') is sequence
l|map('string') is iterable
range is callable
s is callable
missing is callable
s.upper is callable
d.get is callable
i is even
n is odd
i is odd
2.0 is even
'a' is even
i is divisibleby(7)
i is divisibleby 5
i is divisibleby 0
s is upper
'ABC' is upper
'abc' is lower
1 is lower
i is eq(42)
i is eq 42
i is equalto 42
i is ne 42
i is lt 50
i is gt 50
i is le 42
i is ge 43
i is lessthan 50
i is greaterthan 5
i is in [42]
'H' is in s
i is in(l)
i is not in [1]
no is sameas none
t is sameas true
1 is sameas true
l is sameas l
l is sameas [3, 1, 2]
'upper' is filter
'nosuch' is filter
'odd' is test
'nosuch' is test
s is defined and i is defined
s is defined or missing is defined
not s is string
s is string and not i is string
1 is defined == true
i is eq 42 is true
1.0 is integer
s is string|string
tool|tojson
tool|tojson(indent=2)
tool|tojson(indent=0)
tool|tojson(indent='\t')
tool|tojson(indent=none)
tool|tojson(separators=(',', ':'))
tool|tojson(separators=[', ', ':'], indent=1)
tool|tojson(sort_keys=true)
tool|tojson(ensure_ascii=true)
tool|tojson(true)
tool|tojson(false, 1)
u|tojson
u|tojson(ensure_ascii=true)
q|tojson
'\x7f\x00\x1f'|tojson
'\x7f\x00\x1f'|tojson(ensure_ascii=true)
[]|tojson
{}|tojson
[[], {}]|tojson(indent=2)
(1, 2)|tojson
{1: 2, 1.5: 3, none: 4, true: 5}|tojson
{(1, 2): 3}|tojson
{'b': 1, 'a': 2}|tojson(sort_keys=true)
{'b': 1, 1: 2}|tojson(sort_keys=true)
missing|tojson
[missing]|tojson
range(3)|tojson
d.items()|tojson
d.items()|list|tojson
(1e400)|tojson
1.0|tojson
1e21|tojson
none|tojson
true|tojson
l|map('string')|tojson
l|map('string')|list|tojson
html|tojson
('<a>'|safe)|tojson
tool|tojson(indent=true)
tool|tojson(indent=1.5)
tool|tojson(nosuch=1)
namespace(a=1)|tojson
range(5)
range(2, 8, 3)|list
range(5, 0, -2)|list
range(3)[1]
range(3)[-1]
range(3)[1:]|list
range(10)[::2]|list
range(0)
range(1, 5)
range(5, 1)|list
range(3) == range(0, 3)
range(100001)|length
range(100000)|length
range('a')
range(1, 2, 0)
range()
2 in range(5)
range(3).index(2)
dict(a=1, b=2)
dict({'a': 1}, b=2)
dict([('a', 1), ('b', 2)])
dict([1, 2])
dict(d, a=5)
dict(d.items())
dict(1)
dict(**{'x': 1})
namespace(a=1)
namespace(a=1).a
namespace(a=1)['a']
namespace({'a': 2}, b=1).b
namespace().zz
namespace(_x=1)
namespace(a=1) is mapping
namespace(a=1) is defined
namespace(a=1)|length
namespace(a=1)|list
cycler('a', 'b').current
cycler()
joiner()()
lipsum is defined
raise_exception('boom ' ~ i)
raise_exception(no)
raise_exception()
raise_exception('boom') if false else 'fine'
strftime_now('%d %b %Y')
strftime_now('%Y-%m-%d %H:%M:%S')
strftime_now('%A, %B %d, %Y | %a %b %-d %e %j %y %C %I %l %k %M %p %P %U %W %V %G %g %u %w %%')
strftime_now('%c|%x|%X|%D|%F|%T|%R|%r|%n|%t|%h|%s')
strftime_now('%_d %-m %^a %^B %#p %05d %3m %_H %-I')
strftime_now('%Q %E %')
strftime_now('plain é %f %z|%Z|')
strftime_now('')
strftime_now(1)
strftime_now()
strftime_now(format='%Y')
u|lower
u|upper|lower
'ß'|upper
'ŒUVRE'|lower
'ÀÉÎ'.lower()
'привет'.upper()
'ﬀ'|upper
'ά'|upper
[u]
['\x00\x1f\x7f\x80\xa0\xad\u0378\u200d\u2028\ufeff\U000e0001']
['👩‍👩‍👧']
{'k\n': "v'"}
[[[[[]]]]]
((1, (2,)), [3, {4: (5,)}])
d.items()|list|first
users[0].name
users[-1]['name']
users|length > 3
users[1:3]|map(attribute='name')|join('&')
(users|selectattr('name', 'equalto', 'Ann')|list)[0].age
(l|list)[0]
(l + [4])[3]
[l, l]|sum(start=[])
l|first + 1
l|first|string + 'x'
-l|first
-i|abs
i|float / 4
'a' ~ 1 + 2
1 + 2 ~ 3
2 * 3 ~ 4
'x' if 1 > 2 else 'y' ~ 'z'
not true == false
true if true and false or true else false
1 == 1 and 2 == 2 or false
[1 if t else 2, 3]
{'a': 1 if fa else 2}
l[0 if t else 1]
[1, 2,]
{'a': 1,}
(1, 2,)
[,]
{'a'}
(
[1
1 +
1 2
'abc
s.
s..upper
s|
s is
s[
s[1
f(x=1, 2)
dict(a=1, a=2)
dict(*[[('a', 1)]])
range(*[1, 4])|list
dict(**1)
'{}{}'.format(*['a', 'b'])
'{a}'.format(**{'a': 1})
s.upper(**{})
@
$x
a!b
`
1 <> 2
x := 1
lambda: 1
[x for x in l]
s if
'a' 'b' 1
0777
0x
1__0
1_
.5
5.
1e
99999999999999999999
9223372036854775807 + 1
9223372036854775807 * 2
2 ** 63
2 ** 62 * 2 - 1
(-9223372036854775807 - 1) // -1
(-9223372036854775807 - 1)|abs
'a' * 99999999999
[1] * 99999999999
'a'.center(99999999999)
'%99999999999d' % 1
'{:99999999999}'.format(1)
'a'|indent(99999999999)
True
False
None
TRUE
größe
self
loop
caller
_private
__class__
s.upper
range
namespace
'\N{DASH}'
'\ud800'
'\x4'
'\u12'
'tab\	x'
"a\
b"
'''.strip().split("\n")

# Joined again: an expression that itself holds a line break.
EXPRESSIONS = "\n".join(EXPRESSIONS).replace('"a\\\nb"', '"a\\\x00b"').split("\n")
EXPRESSIONS = [e.replace("\x00", "\n") for e in EXPRESSIONS]
# Not compared: Python prints an object's address, or an integer beyond 64 bits.
SKIP = {"l|map('upper')", "l|map('nosuch')", "l|map", "users|selectattr", "2 ** 62 * 2 - 1", "l|reverse", "l|batch(2)", "s.upper", "range", "namespace", "d.items",
        "l|map('string')|reverse|x", "99999999999999999999", "9223372036854775807 + 1",
        "9223372036854775807 * 2", "2 ** 63", "(-9223372036854775807 - 1) // -1",
        "(-9223372036854775807 - 1)|abs", "lipsum is defined", "self", "'\\N{DASH}'", "'\\ud800'",
        "'a' * 99999999999", "[1] * 99999999999", "'a'.center(99999999999)",
        "'%99999999999d' % 1", "'{:99999999999}'.format(1)", "'a'|indent(99999999999)",
        "'abc'.encode()", "1e300|round(-299)"}
EXPRESSIONS = [e for e in EXPRESSIONS if e not in SKIP]

STATEMENTS = [
    # text, tags and white space
    "", "\n", "\n\n", "plain", "a\n", "a\r\nb\rc\n", "é\u2028",
    "  {% if t %}\n  x\n  {% endif %}\n  y",
    "  {%+ if t %}\n  x\n  {%+ endif +%}\n  y",
    "a \n {%- if t -%} \n b \n {%- endif -%} \n c",
    "a {{- s -}} b", "a {{ s }} b\n", "a\n  {{ s }}\n  b", "a  {{+ i }}  b",
    "{% if t %}\n\nx{% endif %}\n\n\ny",
    "{# c #}\nx", "x {#- c -#} y", "  {# c #}\n y", "  {#+ c +#}\n y", "{# a {{ b }} {% c %} #}z",
    "{#-#}x", "{##}x", "{# unclosed", "{#- a -#}\n\n b", "a{# x\n\n#}\n\nb {{ missing.y }}",
    "{% raw %}{{ a }} {% if %} {# c #}{% endraw %}b",
    "{% raw -%}  x  {%- endraw %}", "  {% raw %}\n  x\n  {% endraw %}\n y", "{%- raw %} x {% endraw -%} y",
    "{% raw %}unclosed", "{% raw %}{% raw %}{% endraw %}", "a{% raw +%}x{% endraw %}",
    "\t{% if t %}x{% endif %}", "x\n\t {% if t %}y{% endif %}", "x {% if t %}y{% endif %} \n z",
    "\u00a0{% if t %}x{% endif %}", "{% if t %}  \n{% endif %}|", "{{ '{{' }} {{ '}}' }}",
    "{ x } {% if t %}{ }{% endif %} } }} %} #}", "{{ {'a': {'b': 1}}.a.b }}", "{{ {'a': {'b': 1}}}}",
    "{%if t%}x{%endif%}", "{{i}}{{f}}", "{% if t %}a{% else %}b{% endif %}c\n\n",
    "line1\n{{ missing.x }}", "{{", "{%", "{{ i", "{% if t", "{{ }}", "{% %}", "a {% if t %} b",
    "{{ i }", "{{ i }} }}", "{{ (i }}", "{{ i) }}", "{{ [i) }}", "{{ -}}", "{{- -1 -}}", "{{ 1 -}} x", "{{ 1 --}} x",
    # if
    "{% if i %}a{% endif %}", "{% if z %}a{% elif i %}b{% else %}c{% endif %}",
    "{% if z %}a{% elif e %}b{% else %}c{% endif %}", "{% if i > 3 and s %}y{% endif %}",
    "{% if not missing %}y{% endif %}", "{% if missing %}y{% else %}n{% endif %}",
    "{% if le %}y{% else %}n{% endif %}", "{% if 0.0 or '' or none or {} or () or [] %}y{% else %}n{% endif %}",
    "{% if t: %}x{% endif %}", "{% if 1, 2 %}x{% endif %}", "{% if %}x{% endif %}", "{% if t %}x{% else %}",
    "{% if t %}x{% elif %}{% endif %}", "{% endif %}", "{% else %}", "{% if t %}{% endfor %}{% endif %}",
    "{% if t %}x{% else %}y{% else %}z{% endif %}",
    "{% if fa %}{{ s|nosuch }}{% endif %}ok", "{% if t %}{{ s|nosuch }}{% endif %}ok",
    "{% if fa %}{{ s is nosuch }}{% endif %}ok", "{% if fa %}{% for x in l %}{{ x|nosuch }}{% endfor %}{% endif %}ok",
    "{% if fa %}{% set x = s|nosuch %}{% endif %}ok", "{% if fa %}{% set x %}{{ s|nosuch }}{% endset %}{% endif %}ok",
    # for
    "{% for x in l %}{{ x }},{% endfor %}", "{% for x in s %}{{ x }}.{% endfor %}", "{% for x in u %}{{ x }}.{% endfor %}",
    "{% for k in d %}{{ k }};{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d|dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for a, b in nested %}{{ a }}{{ b }}{% endfor %}", "{% for a, b in [(1, 2), [3, 4], 'xy'] %}{{ a }}{{ b }};{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for (a, b) in [(1, 2)] %}{{ a }}{{ b }}{% endfor %}",
    "{% for a, in [(1,)] %}{{ a }}{% endfor %}", "{% for a in [(1,)] %}{{ a }}{% endfor %}",
    "{% for x in le %}x{% else %}none{% endfor %}", "{% for x in l %}x{% else %}none{% endfor %}",
    "{% for x in missing %}x{% else %}none{% endfor %}", "{% for x in none %}x{% endfor %}", "{% for x in i %}x{% endfor %}",
    "{% for x in l if x > 1 %}{{ x }}{% endfor %}", "{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {{ loop.last }};{% endfor %}",
    "{% for x in l %}{{ loop.index }} {{ loop.index0 }} {{ loop.revindex }} {{ loop.revindex0 }} {{ loop.first }} {{ loop.last }} {{ loop.length }} {{ loop.depth }} {{ loop.depth0 }};{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}<{{ loop.nextitem }};{% endfor %}",
    "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }};{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in l %}{{ loop.cycle() }}{% endfor %}",
    "{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }} {% endfor %}", "{% for x in l %}{{ loop }};{% endfor %}",
    "{% for x in l %}{{ loop.nosuch }}|{% endfor %}", "{% for x in l %}{{ loop._x }}|{% endfor %}",
    "{% for x in l %}{% for y in ls %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% for x in l %}{% set outer = loop %}{% for y in ls %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}",
    "{% for x in l|map('string') %}{{ loop.length }}{{ x }}{{ loop.last }};{% endfor %}",
    "{% for x in l|map('string') %}{{ loop.revindex }}{% endfor %}", "{% for x in range(3) %}{{ x }}{% endfor %}",
    "{% for x in l %}{{ x }}{% if x == 1 %}{% break %}{% endif %}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% break %}{% else %}else{% endfor %}", "{% for x in l %}{% continue %}{% else %}else{% endfor %}",
    "{% for x in l %}{{ x }}{% if loop.index == 2 %}{% break %}{% endif %}{% else %}else{% endfor %}",
    "{% break %}", "{% if t %}{% continue %}{% endif %}", "{% for x in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
    "{% for x in l %}{% set y %}a{% break %}{% endset %}{{ y }}{% endfor %}z",
    "{% for x in l %}{% for y in ls %}{% break %}{% endfor %}{{ x }}{% endfor %}",
    "{% for x in ls %}{% for y in [] %}{% else %}{% break %}{% endfor %}{{ x }}{% endfor %}z",
    "{% for x in l recursive %}{{ x }}{% endfor %}",
    "{% for n in [{'v': 1, 'c': [{'v': 2, 'c': []}, {'v': 3, 'c': [{'v': 4, 'c': []}]}]}] recursive %}[{{ loop.depth }}{{ n.v }}{{ loop(n.c) }}]{% endfor %}",
    "{% for x in l %}{{ loop(l) }}{% endfor %}", "{% for loop in l %}{% endfor %}", "{% for x in l %}{% set loop = 1 %}{% endfor %}",
    "{% for x in l %}{% endfor %}{{ x }}", "{% for s in l %}{{ s }}{% endfor %}{{ s }}", "{{ loop.index }}",
    "{% for x in l if loop.index %}{{ x }}{% endfor %}", "{% for x in l %}{{ x }}{% endfor", "{% for in l %}{% endfor %}",
    "{% for x of l %}{% endfor %}", "{% for x in %}{% endfor %}", "{% for 1 in l %}{% endfor %}", "{% for x.y in l %}{% endfor %}",
    "{% for a, b in l %}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% for a, b in [(1,)] %}{% endfor %}",
    "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}", "{% for x in (1 if t else 2, 3) %}{{ x }}{% endfor %}",
    "{% for x in l if t else le %}{{ x }}{% endfor %}", "{% for x in d.values() %}{{ x }};{% endfor %}",
    "{% for x in l[::-1] %}{{ x }}{% endfor %}", "{% for x in l|reverse %}{{ x }}{{ loop.last }}{% endfor %}",
    "{% for x in users|selectattr('admin') %}{{ x.name }}{{ loop.index }}/{{ loop.length }} {% endfor %}",
    "{% for g in users|groupby('age') %}{{ g.grouper }}:{{ g.list|map(attribute='name')|join(',') }};{% endfor %}",
    "{% for age, us in users|groupby('age') %}{{ age }}:{{ us|length }};{% endfor %}",
    "{% set ns = namespace(seen=0) %}{% for x in l if ns.seen < 2 %}{% set ns.seen = ns.seen + 1 %}{{ x }}{% endfor %}",
    "{% set ns = namespace(seen=0) %}{% for x in l if ns.seen < 2 %}{% set ns.seen = ns.seen + 1 %}{{ x }}{{ loop.last }}{% endfor %}",
    # set
    "{% set x = 1 %}{{ x }}", "{% set x, y = 1, 2 %}{{ x }}{{ y }}", "{% set (x, y) = (1, 2) %}{{ x }}{{ y }}",
    "{% set x = 1, 2 %}{{ x }}", "{% set x %}a{{ i }}b{% endset %}{{ x }}", "{% set x | upper %}abc{% endset %}{{ x }}",
    "{{ i }}{% set x | replace('a', i) | upper %}abc{% endset %}{{ x }}", "{% set x %}{% endset %}[{{ x }}]{{ x is string }}",
    "{% set s = 'new' %}{{ s }}", "{{ s }}{% set s = 'new' %}{{ s }}", "{% set s = s + '!' %}{{ s }}",
    "{% set s %}[{{ s }}]{% endset %}{{ s }}", "{% if fa %}{% set s = 1 %}{% endif %}{{ s }}",
    "{% if t %}{% set y = 1 %}{% endif %}{{ y }}", "{% if fa %}{% set y = 1 %}{% endif %}{{ y }}|",
    "{% for x in l %}{% set y = x %}{% endfor %}{{ y }}|", "{% set y = 0 %}{% for x in l %}{% set y = y + x %}{{ y }}{% endfor %}{{ y }}",
    "{% for x in l %}{{ s }}{% endfor %}{% set s = 5 %}{{ s }}", "{% for x in l %}{% for y in l %}{{ s }}{% endfor %}{% set s = 5 %}{% endfor %}",
    "{% set ns = namespace(c=0) %}{% for x in l %}{% set ns.c = ns.c + x %}{% endfor %}{{ ns.c }}",
    "{% set ns = namespace() %}{% set ns.a = 1 %}{% set ns.b = ns.a + 1 %}{{ ns.a }}{{ ns.b }}{{ ns }}",
    "{% set ns = namespace(a=1) %}{% set ns.a, ns.b = 5, 6 %}{{ ns.a }}{{ ns.b }}", "{% set ns = namespace() %}{% set ns.x %}blk{% endset %}{{ ns.x }}",
    "{% set ns = namespace() %}{% set ns._x = 1 %}", "{% set d.a = 5 %}", "{% set zz.a = 5 %}", "{% set 1 = 2 %}", "{% set a[0] = 1 %}",
    "{% set true = 1 %}", "{% set x = %}", "{% set x %}", "{% set x = 1 if fa %}{{ x is defined }}[{{ x }}]", "{% set x, y = l %}",
    "{% set x = [] %}{% set x = x + [1] %}{% set x = x + [2] %}{% set y = x + [3] %}{% set z = x + [4] %}{{ x }}{{ y }}{{ z }}",
    "{% set x = 'a' %}{% set x = x + 'b' * 70 %}{% set y = x + 'c' %}{% set z = x + 'd' %}{{ x }}{{ y }}{{ z }}",
    "{% set f = s.upper %}{{ f() }}", "{% set g = l|map('string') %}{{ g|list }}{{ g|list }}",
    "{% set m = namespace(l=l) %}{{ m.l[0] }}{{ m.l|length }}", "{% set x = namespace(y=namespace(z=1)) %}{{ x.y.z }}",
    "{% set a = 1 %}{% set b = a %}{% set a = 2 %}{{ a }}{{ b }}", "{% set a = b %}{% set b = 1 %}{{ a }}|{{ b }}",
    # macros
    "{% macro m() %}x{% endmacro %}{{ m() }}{{ m() }}", "{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=4, a=5) }}{{ m() }}",
    "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m(a, a) %}{% endmacro %}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}", "{% macro m(a) %}{{ a is defined }}{{ a }}{% endmacro %}{{ m() }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(a) %}{{ a }}{{ varargs|length }}{% endmacro %}{{ m(1, 2, 3) }}",
    "{% macro m(n) %}{{ n }}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(5) }}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro m() %}{{ s }}{% endmacro %}{{ m() }}", "{% macro m() %}{{ v }}{% endmacro %}{% set v = 7 %}{{ m() }}", "{% macro m() %}{{ x }}{% endmacro %}{% for x in l %}{{ m() }}{% endfor %}|",
    "{% set v = 7 %}{% macro m() %}{% set v = 8 %}{{ v }}{% endmacro %}{{ m() }}{{ v }}", "{% macro m(v) %}{% set v = v + 1 %}{{ v }}{% endmacro %}{{ m(1) }}",
    "{% for x in l %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}",
    "{% macro m() %} x {% endmacro %}[{{ m()|trim }}]", "{% macro m() -%} x {%- endmacro %}[{{ m() }}]", "{{ m }}{% macro m() %}{% endmacro %}{{ m }}",
    "{% macro m(a) %}{% endmacro %}{{ m.name }}{{ m.catch_kwargs }}", "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}inner {{ s }}{% endcall %}",
    "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) m() %}{{ a }}-{{ b }}{% endcall %}", "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}",
    "{% macro m(x) %}{{ x }}{% if caller %}{{ caller() }}{% endif %}{% endmacro %}{{ m(1) }}{% call m(2) %}c{% endcall %}",
    "{% macro m() %}x{% endmacro %}{% call m() %}inner{% endcall %}", "{% call s %}{% endcall %}", "{% call s.upper() %}{% endcall %}",
    "{% macro m(a, b=1, c=2) %}{{ [a, b, c] }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 5, 'c': 6}) }}", "{% macro m(caller=none) %}{{ caller() if caller else 'no' }}{% endmacro %}{{ m() }}{% call m() %}c{% endcall %}",
    "{% macro m(caller) %}{{ caller }}{% endmacro %}", "{% macro m %}{% endmacro %}", "{% macro m() %}", "{% macro 1() %}{% endmacro %}", "{% macro m(1) %}{% endmacro %}",
    "{% macro m(x) %}{{ x|upper }}{% endmacro %}{{ ls|map('upper')|join }}{{ m('a') ~ m('b') }}", "{% macro m() %}{% for x in l %}{{ loop.index }}{% endfor %}{% endmacro %}{{ m() }}",
    "{% macro m(d={}) %}{{ d }}{% endmacro %}{{ m() }}{{ m({'a': 1}) }}", "{% macro o(x) %}{% macro i(y) %}{{ x }}{{ y }}{% endmacro %}{{ i(1) }}{{ i(2) }}{% endmacro %}{{ o(9) }}",
    "{% if t %}{% macro m() %}T{% endmacro %}{% else %}{% macro m() %}F{% endmacro %}{% endif %}{{ m() }}",
    # filter blocks, with, print, generation
    "{% filter upper %}abc {{ s }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}aaa{% endfilter %}", "{% filter length %}abc{% endfilter %}",
    "{% filter nosuch %}{% endfilter %}", "{% filter indent(2) %}a\nb{% endfilter %}", "{% filter upper %}{% set q = 1 %}{% endfilter %}{{ q }}|",
    "{% with %}{% set a = 1 %}{{ a }}{% endwith %}{{ a }}|", "{% with a=1, b=2 %}{{ a }}{{ b }}{% endwith %}", "{% with s=1 %}{{ s }}{% endwith %}{{ s }}",
    "{% with a=1, b=a %}{{ b }}{% endwith %}|", "{% with a %}{% endwith %}", "{% with a, b = 1, 2 %}{% endwith %}", "{% print s %}", "{% print s, i %}", "{% print %}|",
    "a{% generation %}b{{ i }}{% endgeneration %}c", "{% generation %}{% set x = 1 %}{% endgeneration %}{{ x }}|",
    "{% for x in l %}{% generation %}{{ x }}{{ loop.index }}{% endgeneration %}{% endfor %}", "{% generation %}", "{%- generation -%}\n x \n{%- endgeneration -%}\n",
    # other tags
    "{% include 'x' %}", "{% extends 'x' %}", "{% import 'x' as y %}", "{% from 'x' import y %}", "{% do x %}", "{% nosuch %}", "{% 1 %}",
    # cycler and joiner
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}",
    "{% set j = joiner() %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}", "{% set j = joiner('|') %}{{ j() }}a{{ j() }}b{{ j() }}",
    # as templates are written
    "{% for m in users %}{{ '<|im_start|>' + m['name'] + '\n' + m.age|string + '<|im_end|>' + '\n' }}{% endfor %}{% if t %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "{%- for m in users %}\n    {%- if loop.first and m.name != 'x' %}\n        {{- 'first ' }}\n    {%- endif %}\n    {{- m.name }}\n{%- endfor %}\n",
    "{%- set ns = namespace(found=false) -%}\n{%- for m in users -%}\n  {%- if m.admin is defined and not ns.found -%}\n    {%- set ns.found = true -%}\n    {{ m.name }}\n  {%- endif -%}\n{%- endfor -%}",
    "{%- if users[0]['name'] == 'Ann' %}{% set sys = users[0]['name']|trim %}{% set rest = users[1:] %}{% else %}{% set sys = '' %}{% endif %}{{ sys }}{{ rest|length }}",
    "{{ (users|selectattr('admin', 'equalto', true)|list|length) ~ ' admins' }}",
    "{% if users is iterable and users is not string and users is not mapping %}list{% endif %}",
    "{% for c in [{'type': 'text', 'text': 'a'}, {'type': 'image'}] %}{% if c['type'] == 'text' %}{{ c['text'] }}{% elif c.type == 'image' %}<img>{% endif %}{% endfor %}",
    "{{ raise_exception('Roles must alternate ' + tok) }}",
    ("{{ strftime_now('%d %B %Y, week %V of %G, day %j') }}", 1609459199), ("{{ strftime_now('%G-W%V-%u %U %W') }}", 1609459200),
    ("{{ strftime_now('%G-W%V-%u %U %W %I %l %p') }}", 1704067199), ("{{ strftime_now('%G-W%V-%u %j %g') }}", 1735603200),
    ("{{ strftime_now('%c') }}", 0), ("{{ strftime_now('%F %T') }}", -86401), ("{{ strftime_now('%F %a') }}", 951782400),
]
