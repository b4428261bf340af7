#!/usr/bin/env python3
"""Writes jinja_cases.json: templates, their context, and what Python's jinja2 renders or that it fails.

Run it after adding a case; the environment is the one transformers renders chat templates with."""
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.sandbox


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_run"), [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def _run(self, context, caller):
        return caller()


def environment():
    env = jinja2.sandbox.SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.filters["from_json"] = json.loads
    env.globals["raise_exception"] = raise_exception
    return env


CONTEXT = {
    "s": "Hello World", "u": "Größe 日本 🦙", "blank": "  \t pad \n", "lines": "a\nb\n\nc", "empty": "",
    "n": 7, "neg": -7, "f": 2.5, "big": 1e20, "small": 1e-7, "t": True, "no": False, "nil": None,
    "l": [3, 1, 2], "names": ["bob", "Alice", "carol", "alice"], "mixed": [1, "a", None, True, 2.0, [1], {"k": "v'"}],
    "d": {"b": 2, "a": 1, "C": 3}, "nested": {"x": {"y": [10, {"z": "deep"}]}, "items": "shadowed"},
    "users": [{"name": "bob", "age": 30, "role": "user"}, {"name": "Al", "age": 25, "role": "admin"},
              {"name": "cy", "age": 30, "role": "user"}, {"name": "no role", "age": 1}],
    "tree": [{"v": 1, "c": [{"v": 2, "c": []}, {"v": 3, "c": [{"v": 4, "c": []}]}]}, {"v": 5, "c": []}],
    "html": "<a href=\"x\">'&'</a>", "q": "it's", "qq": "it's \"both\"",
}

EXPRESSIONS = """
s|length; u|length; l|length; d|length; missing|length; s|upper; s|lower; u|upper; s|title; q|title; "o'neil's x-y"|title; s|capitalize; u|capitalize
blank|trim; s|trim('Hd'); s|trim(chars='H'); blank.strip(); blank.lstrip(); blank.rstrip(); s.strip('Hd'); s.lstrip('He'); s.rstrip('dl')
s|string; n|string; l|string; d|string; mixed|string; mixed; d; u; [u, q, qq, lines]; nil; t; no; f; big; small; 1.0; 100000.0; 1e15; 1e16; 123456789.123; 0.1+0.2; -0.0; 3.14e-5
missing|default('x'); empty|default('x'); empty|default('x', true); nil|default('x'); nil|default('x', boolean=true); missing|d(1); missing|default; missing; missing|string
l|join(', '); mixed|join('-'); users|join(',', attribute='name'); s|join('.'); d|join('/'); []|join; missing|join('x'); l|join
l|list; s|list; d|list; d.items()|list; d.keys()|list; d.values()|list; (1, 2)|list; u|list
d|items|list; missing|items|list; d|dictsort; d|dictsort(true); d|dictsort(by='value'); d|dictsort(reverse=true); d|dictsort(false, 'value', true)
users|selectattr('role', 'equalto', 'user')|list; users|selectattr('role')|map(attribute='name')|list; users|rejectattr('role', 'defined')|list; users|selectattr('age', '>', 26)|map(attribute='name')|join(' ')
users|selectattr('role', 'in', ['admin', 'x'])|list|length; users|rejectattr('age', 'eq', 30)|map(attribute='age')|list; users|map(attribute='role', default='none')|list
l|select('odd')|list; l|reject('odd')|list; mixed|select|list; mixed|reject|list; mixed|select('string')|list; l|select('>', 1)|list; l|select('divisibleby', 3)|list; mixed|select('none')|list
names|map('upper')|list; names|map('replace', 'a', '4')|list; l|map('string')|list; names|map('length')|list; l|map('default', 5)|list; nested.x.y|map('tojson')|join('|')
s|replace('l', 'L'); s|replace('l', 'L', 1); s.replace('l', 'L'); s.replace('l', 'L', 2); s.replace('', '.'); s|replace('o', ''); u|replace('ö', 'oe'); s.replace('', '-', 3)
lines|indent; lines|indent(2); lines|indent(2, true); lines|indent(2, first=true, blank=true); lines|indent('> '); s|indent(4); lines|indent(width=1)
'42'|int; '4x'|int; '4x'|int(9); ' 12 '|int; 3.9|int; -3.9|int; '3.7'|int; 'ff'|int(0, 16); t|int; nil|int; '-5'|int; '+5'|int; '2.5'|float; 'x'|float; 'x'|float(1.5); n|float; '1e3'|float
l|sort; names|sort; names|sort(case_sensitive=true); l|sort(reverse=true); users|sort(attribute='age')|map(attribute='name')|list; users|sort(attribute='age', reverse=true)|map(attribute='name')|list
names|unique|list; names|unique(true)|list; [1, 1.0, true, 2]|unique|list; users|map(attribute='age')|unique|list; users|unique(attribute='age')|map(attribute='name')|list
l|min; l|max; names|min; names|max; users|min(attribute='age'); []|min; l|sum; users|sum(attribute='age'); [1.5, 2]|sum; users|sum('age', 100)
l|first; l|last; []|first; s|first; s|last; d|first; l|reverse|list; s|reverse; u|reverse; (-3)|abs; -2.5|abs; -3|abs; 2.567|round(2); 2.5|round; 3.5|round; 7|round; 2.1|round(0, 'ceil'); 2.9|round(method='floor'); 1.005|round(2)
d|tojson; mixed|tojson; u|tojson; u|tojson(ensure_ascii=true); d|tojson(indent=2); nested|tojson(indent=4); []|tojson(indent=2); {}|tojson(indent=2); d|tojson(sort_keys=true); d|tojson(separators=(',', ':')); big|tojson; small|tojson
"\\u0001\\x7f\\t\\"\\\\/"|tojson; html|tojson; (1, 2)|tojson; {1: 2, none: 3, true: 4, 1.5: 5}|tojson; '{"a": [1, 2.0, null]}'|from_json; '[1]'|from_json|first; d|tojson(indent=2, separators=(',', ': ')); nested|tojson(indent='--')
html|e; html|escape; html|safe; 'a b/c?d=ü&'|urlencode; s|wordcount; users|groupby('age')|map('first')|list; users|groupby('role', default='-')|map(attribute='1')|map('length')|list; d|attr('items') is callable; d|attr('b') is defined
'%s is %d'|format(s, n); '%s|%5d|%-5d|%05d|%.2f|%x|%%|%r' % (s, 42, 42, 42, 2.567, 255, q); '%s' % n; '%d' % 3.7; '%5.1f|%+d' % (2.25, 5); '%s' % [1, 2]
'{} {}'.format(1, 'b'); '{1} {0}'.format('a', 'b'); '{x} {y.z} {y[z]}'.format(x=1, y={'z': 2}) if false else 'skip'; '{{}} {!r}'.format(q); '{:>5}|{:<5}|{:^5}|{:05d}|{:.2f}|{:,}'.format(1, 2, 3, 42, 2.567, 1234567); '{:x} {:b} {:#x}'.format(255, 5, 255); '{0[a]}'.format(d); '{:*^9}'.format('mid'); '{:.3}'.format('abcdef')
s.split(); s.split(' '); 'a,b,,c'.split(','); 'a,b,c'.split(',', 1); ' a  b '.split(); ' a  b  c '.split(none, 1); 'a'.split('x'); ''.split(','); ''.split(); 'a,b,c'.rsplit(',', 1); 'a,b'.rsplit(','); 'a--b--c'.split('--')[-1]
s.startswith('He'); s.endswith('ld'); s.startswith(('x', 'H')); s.upper(); s.lower(); s.title(); 'ab cd'.capitalize(); s.find('o'); s.rfind('o'); s.find('zz'); u.find('日'); s.index('W'); s.count('l'); s.count(''); '-'.join(names); s.partition(' '); s.partition('x')
'12'.isdigit(); 'a1'.isdigit(); ''.isdigit(); 'ab'.isalpha(); 'a b'.isalpha(); 'a1'.isalnum(); ' '.isspace(); 'ab'.islower(); 'aB'.islower(); 'AB1'.isupper(); 'abc'.removeprefix('a'); 'abc'.removesuffix('c'); 'abc'.removesuffix('x'); lines.splitlines(); 'a\\r\\nb\\n'.splitlines(true)
d.get('a'); d.get('zz'); d.get('zz', 5); d.a; d['a']; d.zz; d['zz']; nested.items is callable; nested['items']; nested.x.y[1].z; nested['x']['y'][0]; nested.x.y[-1]; nested.x.y.1.z; l[0]; l[-1]; l[9]; s[0]; s[-1]; u[6]; u[99]; d.copy(); l.count(1); l.index(2)
l[1:]; l[:-1]; l[::-1]; l[::2]; l[5:]; s[1:4]; s[::-1]; u[::-1]; s[-5:]; s[:100]; l[-2:]; l[2:0:-1]; (1, 2, 3)[1:]; s[4:1]; l[:]; s[none:3]
1 + 2; 7 // 2; -7 // 2; 7 % 3; -7 % 3; 7 % -3; 7 / 2; 4 / 2; 2 ** 10; 2 ** -1; 2 ** 0.5; 7.5 // 2; -7.5 % 2; 1 + 2.0; 3 * 1.5; 'ab' * 3; 2 * 'ab'; [1] * 2; [1] + [2]; (1,) + (2,); 'a' + 'b'; 1 ~ 'a' ~ none ~ true; true + 1; 10 - 2 - 3; 2 * 3 + 4 * 5; (1 + 2) * 3; -n; +n; - -n; 2 ** 3 ** 2; -2 ** 2; 1 - -1; n ~ n; n % 2 == 1; 0x1f + 0b11 + 0o7; 1_000
1 < 2; 1 < 2 < 3; 1 < 3 < 2; 1 == 1.0; 1 == true; 'a' < 'b'; [1, 2] < [1, 3]; 'a' == 'a'; 'a' != 'b'; none == none; missing == missing2; [1] == [1]; d == {'a': 1, 'b': 2, 'C': 3}; (1, 2) == [1, 2]; 1 in l; 5 in l; 'World' in s; 'x' not in s; 'a' in d; 'z' in d; not 'z' in d; 1 not in l; 1 in missing; '1' == 1; nil != 1
t and no; t or no; not t; nil or 'x'; 'a' and 'b'; empty or 0; not not empty; 1 if t else 2; 1 if no else 2; 1 if no; ('a' if no else 'b') ~ 'c'; 'x' if missing else 'y'; t and not no or no; 1 if t else 2 if t else 3
s is defined; missing is defined; missing is undefined; s is string; n is string; nil is none; n is none; d is mapping; l is mapping; l is iterable; s is iterable; n is iterable; missing is iterable; l is sequence; d is sequence; s is sequence; n is sequence; t is boolean; n is boolean; t is true; n is true; no is false; 0 is false
n is number; f is number; t is number; s is number; n is integer; f is integer; t is integer; f is float; n is float; n is odd; n is even; n is divisibleby 7; n is divisibleby(2); n is eq 7; n is equalto(8); n is ne 7; n is lt 8; n is ge 7; n is gt(1); 'a' is in ['a']; n is in [1]; s is lower; 'abc' is lower; 'ABC' is upper; d is callable; d.get is callable; range is callable; 'upper' is filter; 'zz' is filter; 'odd' is test; nil is sameas none; t is sameas true; 1 is sameas true; n is not none; n is not string; not n is string; n is defined and n > 5
range(3)|list; range(1, 4)|list; range(5, 0, -2)|list; range(0)|list; range(3)|join(','); dict(a=1, b='x'); dict(d, z=9); namespace(a=1).a; namespace(a=1).zz is defined; [1, [2, (3,)], {'a': (1, 2)}]; (); (1,); {}; []; {'a': {'b': []}}; 'a' 'b'; "x\\ty"; 'q\\'q'; "\\u00e9\\x41\\101"; '\\d'; "line\\nbreak"
loop is defined; self is defined if false else 1; '}}'; '{%'; {'a': {'b': 1}}['a']['b']; [[1, 2], [3]][0][1]; (1, 2)[0]; {'k': [1]}.k[0]; s.upper().lower().title(); s|upper|lower; ('a', 'b')|join; -1|abs; (n, f)|map('string')|join('/'); 'a'~'b'|upper; 1 + 2|string|length; [1, 2, 3,]; {'a': 1,}; u|tojson|length; "日本"[1]; 'ß'|upper; 'ǆ'|capitalize; 'İ'|lower|length
nil|select|list; nil|map('upper')|list; nil|selectattr('a')|list; nil|reject|list; nil|rejectattr('a')|list; 0|map('upper')|list; empty|select|list; missing|map('upper')|list; none[:1]; none[1:] is defined; 5[:1]; {}[:1]; l[none:1]; (1, 2)[:1]
html|safe + '<'; '<' + (html|safe); '<'|safe ~ '<'; html|safe|e; html|safe is escaped; html is escaped; html|e|length; (html|safe).replace('a', '<'); html|safe|replace('a', '<'); ('%s %d'|safe) % ('<', 2); ('a b'|safe).split()[0] + '<'; [html, html|safe]|join('&'); ('&'|safe).join(['<', 'a'|safe])
html|safe|upper + '<'; (html|safe)[0] + '<'; (html|safe)[0:2] + '<'; html|safe|trim + '<'; html|safe|string + '<'; {'a': html|safe}|tojson; [html|safe]; (html|safe) == html; ('{}{x}'|safe).format('<', x='>'); html|forceescape|forceescape; ('<'|safe) * 2 + '<'; n|safe; nil|safe; n|safe + '<'; (l|safe)|length; html|safe|title + '<'; html|safe|indent + '<'; '%s'|safe|format('<'); html|safe|reverse + '<'; html|safe|length; html|safe is string
l|batch(2)|list; l|batch(2, 0)|list; []|batch(2)|list; s|batch(4)|map('join')|list; l|slice(2)|list; l|slice(2, 'x')|list; range(7)|slice(3)|list; s|center(15); s|center; n|center(5); (s * 30)|truncate(20); s|truncate(9, leeway=0); s|truncate(9, true, leeway=0); s|truncate(10); s|truncate(9, end='', leeway=0); (s * 30)|truncate|length; u|truncate(6, true, '…', 0)
1|filesizeformat; 999|filesizeformat; 1000|filesizeformat; 1234567|filesizeformat; 1048576|filesizeformat(true); 1500|filesizeformat(binary=true); '5000'|filesizeformat; 1e30|filesizeformat; {'a': 1, 'b': '<', 'c': none, 'd': missing}|xmlattr; {'a': 'x'}|xmlattr(false); {}|xmlattr; [5]|random; []|random; d|urlencode; [('a b', '&/')]|urlencode; n|urlencode; q|wordcount; u|wordcount; 'a_b-c d1'|wordcount
'ab'.center(5); 'ab'.center(6, '*'); 'abc'.center(6); 'ab'.center(1); 'ab'.ljust(4) ~ '|'; 'ab'.rjust(4, '0'); '42'.zfill(5); '-42'.zfill(5); 'x'.zfill(0); 'a\\tb\\n\\tc'.expandtabs(4); 'a\\tb'.expandtabs(); s.swapcase(); 'Straße'.casefold(); s.isascii(); u.isascii(); s.istitle(); 'aB'.istitle(); ''.istitle(); s.isprintable(); lines.isprintable(); 'a1_'.isidentifier(); '1a'.isidentifier(); ''.isidentifier(); '12'.isnumeric()
s.rpartition('o'); s.rpartition('x'); s.rindex('o'); s.find('o', 5); s.find('o', 5, 6); s.find('', 99); s.rfind('o', 0, 5); s.index('o', -5); s.count('o', 5); s.count('', 3); s.startswith('World', 6); s.endswith('Hello', 0, 5); s.endswith('Hello', none, 5); u.find('日', 2); ' a  b c '.rsplit(); ' a  b c '.rsplit(none, 1); ' a  b '.rsplit(maxsplit=1); '{a}-{b}'.format_map({'a': 1, 'b': 'x'}); (5).bit_length(); (2.0).is_integer(); f.is_integer()
"""

TEMPLATES = r"""
{% for x in l %}{{ x }}{% if not loop.last %},{% endif %}{% endfor %}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }} {% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}
{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for x in [] %}never{% else %}empty{% endfor %}
{% for x in missing %}never{% else %}undefined is empty{% endfor %}
{% for x in l if x > 1 %}{{ loop.index }}:{{ x }} {% endfor %}
{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for c in 'héy' %}[{{ c }}]{% endfor %}
{% for k in d %}{{ k }}{% endfor %}
{% for x in l %}{% for y in l %}{{ loop.index }}{{ loop.depth }} {% endfor %}{% endfor %}
{% for x in l recursive %}{{ x }}{% endfor %}
{% for n in tree recursive %}({{ n.v }}{{ loop(n.c) if n.c }}@{{ loop.depth0 }}){% endfor %}
{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}
{% for x in [1, 1, 2] %}{{ loop.changed(x) }} {% endfor %}
{% set x = 1 %}{% for i in l %}{% set x = i %}{{ x }}{% endfor %}{{ x }}
{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}
{% set ns = namespace() %}{% set ns.a = 'b' %}{{ ns.a }}{{ ns.missing is defined }}
{% if no %}{% set y = 1 %}{% endif %}{{ y is defined }}{% if t %}{% set y = 2 %}{% endif %}{{ y }}
{% if n == 1 %}one{% elif n == 7 %}seven{% else %}other{% endif %}
{% if missing %}a{% elif empty %}b{% elif nil %}c{% elif 0 %}d{% elif [] %}e{% elif {} %}f{% else %}none true{% endif %}
{% set a, b = 1, 2 %}{{ a }}{{ b }}
{% set (a, b) = (3, 4) %}{{ a + b }}
{% set x %}block {{ n }}{% endset %}[{{ x }}]
{% set x | upper | trim %} block {% endset %}[{{ x }}]
{% filter upper %}shout {{ s }}{% endfilter %}
{% filter replace('a', 'b') | upper %}banana{% endfilter %}
{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}
{% macro m(a, b=2, c='x') %}{{ a }}-{{ b }}-{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(1, c='z') }} {{ m() }}
{% macro m(a) %}{{ a }}|{{ varargs }}|{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, k=4) }}
{% macro outer() %}<{{ caller() }}>{% endmacro %}{% call outer() %}body {{ n }}{% endcall %}
{% macro each(items) %}{% for i in items %}{{ caller(i) }}{% endfor %}{% endmacro %}{% call(x) each(l) %}[{{ x }}]{% endcall %}
{% macro fact(k) %}{% if k <= 1 %}1{% else %}{{ k * (fact(k - 1)|int) }}{% endif %}{% endmacro %}{{ fact(10) }}
{% macro uses_outer() %}{{ n }}{{ later }}{% endmacro %}{% set later = 'L' %}{{ uses_outer() }}
{% macro p(x) -%} {{ x }} {%- endmacro %}[{{ p('v') }}]{{ p.name }}
{% raw %}{{ not rendered }} {% if %}{% endraw %} {{ n }}
{% raw -%}   stripped {%- endraw %}|
a {#- comment -#} b {# another #} c
  {# comment on its own line #}
text
  {% if t %}
    indented
  {% endif %}
end
  {%+ if t %}kept{%+ endif %}
x
{%- if t -%}
  y
{%- endif -%}
z
{% if t +%}
newline kept
{% endif %}
{{ n }}
after
{{ n -}}
   joined
left   {{- n }}
  {{ n }}
{%- for x in l -%} {{ x }} {%- endfor -%}
{% for x in l %}
  - {{ x }}
{% endfor %}
done
{% generation %}gen {{ s }}{% endgeneration %}
{% generation %}{% set inside = 1 %}{{ inside }}{% endgeneration %}
{%- for m in users %}
{%- if m.role is defined and m.role == 'user' %}
{{- '<' + m['name'] + '>' }}
{%- else %}
{{- raise_exception('x') if false else '(' ~ m.age ~ ')' }}
{%- endif %}
{%- endfor %}
{{ '{"a": "' + s + '"}' }}{{ "\n" }}{{ '\n' }}|
{{ missing.x is defined if missing else 'safe' }}
{{- 'leading' }}
{% set x = [1] %}{% set _ = x.append(2) %}{{ x }}{% set y = x.pop() %}{{ x }}{{ y }}{% set _ = x.extend([5, 6]) %}{% set _ = x.insert(0, 9) %}{{ x }}{{ x.pop(0) }}
{% set x = {'a': 1} %}{% set _ = x.update({'b': 2}) %}{{ x }}{{ x.pop('a') }}{{ x }}{{ x.setdefault('z', 3) }}{{ x }}
{% set x = {} %}{% set _ = x.update(k='v') %}{% for i in range(12) %}{% set _ = x.update({'k' ~ i: i}) %}{% endfor %}{{ x }}{{ x.k7 }}{{ x.pop('k3') }}{{ x['k11'] }}{{ x.get('k3') }}
{{ 'a' if n is odd else 'b' }}{{ 'x' if not n is odd }}
{{ users | map(attribute='name') | map('upper') | join(', ') }}
{{ d['a'] if 'a' in d else 'none' }} {{ d.get('zz', {}).get('q', 'deep default') }}
{% for u in users | sort(attribute='name') %}{{ u.name }}{{ ' ' if not loop.last }}{% endfor %}
{% for g, items in users | groupby('age') %}{{ g }}:{{ items | map(attribute='name') | join('+') }} {% endfor %}
{{ n }}{# c #}{{ n }}{#- c -#} {{ n }}
{{ [1,2,3] | map('string') | list | join }}{{ (1, 2) | first }}
{% if s is string and s|length > 3 and not (n < 5 or f > 3) %}yes{% endif %}
{{ s[:3] + '...' + s[-3:] }} {{ s[n % 3] }} {{ (s ~ n)|length }}
{% set t2 = (1, 'two', 3.0, none, [4]) %}{{ t2 }} {{ t2|length }} {{ t2[1:3] }}
{{ 1 if missing is defined and missing.foo else 2 }}
{{ dict(a=1) | tojson }}{{ namespace(a=1, b=2).b }}
{% for k, v in nested | dictsort %}{{ k }} {% endfor %}
{% for i in range(3) %}{% for j in range(3) %}{% if j == 1 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% if i == 1 %}{% continue %}{% endif %}|{% endfor %}
"""

ERRORS = r"""
{{ missing.x }}
{{ missing + 1 }}
{{ 1 + missing }}
{{ 'a' + 1 }}
{{ missing() }}
{{ n() }}
{{ n.foo.bar }}
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ l | join(', ' }}
{{ 'a' < 1 }}
{% if %}x{% endif %}
{% for x in 5 %}{% endfor %}
{% endfor %}
{% if t %}unclosed
{% unknown %}
{{ raise_exception('message') }}
{{ s | nofilter }}
{{ s is notest }}
{{ 'unclosed }}
{{ l[}}
{% set x = %}
{{ missing | tojson }}
{{ range(1000000) | list }}
{{ 'x' in 5 }}
{{ n | length }}
{{ l.pop(99) }}
{{ d.pop('zz') }}
{{ {'a': 1}['a'].b.c }}
{% set a, b = [1, 2, 3] %}
{{ 'abc'.split('') }}
{{ '%d' % 'x' }}
{{ '{}'.format() }}
{{ missing[0] }}
{{ -s }}
{# unclosed comment
{% raw %}unclosed
{{ 1 $ 2 }}
{% macro m( %}{% endmacro %}
{% set n.x = 1 %}
{{ l | sort(attribute='x') }}{{ mixed | sort }}
{{ range(1, 2, 0) }}
"""

MULTILINE = [
    "  {# comment on its own line #}\ntext\n", "  {% if t %}\n    indented\n  {% endif %}\nend\n",
    "a\n  {%+ if t %}kept{%+ endif %}\nx", "a  \n{%- if t -%}\n  y\n{%- endif -%}\n  z", "{% if t +%}\nnewline kept\n{% endif %}\n",
    "{{ n }}\nafter\n", "{{ n -}}\n   joined", "left \n  {{- n }}", "  {{ n }}  \n", "{%- for x in l -%}\n {{ x }} \n{%- endfor -%}\n",
    "{% for x in l %}\n  - {{ x }}\n{% endfor %}\ndone\n\n", "line\r\n{% if t %}\r\ncrlf\r\n{% endif %}\rcr", "\n\n{% set x = 1 %}\n\n{{ x }}\n\n",
    "  {% set x = 1 %}  {% set y = 2 %}\n  {{ x }}{% if t %}  {% endif %}\n", "{# a #}\n{# b #}\n  {# c #}  \nz",
    "{% raw %}\n  {{ x }}\n{% endraw %}\n  next", "a\n  {%- raw -%}\n {{ x }}\n {%- endraw -%}\n b", "{% if t %}{# c #}\n{% endif %}x",
    "\t{% if t %}\n\ttab\n\t{% endif %}\n", "x {% if t %}\n  same line\n {% endif %} y", "{{ 'a\nb' }}\n{{ '''q''' if false }}",
    "{%- set ns = namespace(found=false) -%}\n{%- for m in users -%}\n  {%- if m.age == 30 and not ns.found -%}\n    {%- set ns.found = true -%}\n    {{ m.name }}\n  {%- endif -%}\n{%- endfor -%}\n",
    "{% macro tool(t) %}\n{{- t.name }}:\n  {{- t.age }}\n{% endmacro %}\n{% for u in users %}\n{{ tool(u) }}\n{% endfor %}\n",
]


def main():
    env = environment()
    templates = ["{{ %s }}" % e.strip() for line in EXPRESSIONS.strip().split("\n") for e in line.split("; ")]
    templates += [t for t in TEMPLATES.strip("\n").split("\n")] + MULTILINE
    cases = []
    for template in dict.fromkeys(templates + ERRORS.strip("\n").split("\n")):
        try:
            case = {"template": template, "expected": env.from_string(template).render(json.loads(json.dumps(CONTEXT)))}
        except Exception as error:  # any failure of the reference is a case
            case = {"template": template, "error": str(error)}
        cases.append(case)
    path = pathlib.Path(__file__).parent / "jinja_cases.json"
    path.write_text(json.dumps({"context": CONTEXT, "cases": cases}, ensure_ascii=False, indent=0) + "\n")
    print(len(cases), "cases,", sum("error" in case for case in cases), "of them errors")


if __name__ == "__main__":
    main()
