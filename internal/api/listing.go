package main

import (
	"fmt"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

const module = "github.com/seed951563bd/distsync/"

// listing returns one line for each exported name of a package, in the format of Go's api/*.txt.
func listing(pkg *types.Package) []string {
	l := lister{pkg: pkg}
	for _, n := range pkg.Scope().Names() {
		if token.IsExported(n) {
			l.object(pkg.Scope().Lookup(n))
		}
	}
	for i, line := range l.lines {
		l.lines[i] = "pkg " + strings.TrimPrefix(pkg.Path(), module) + ", " + line
	}
	return l.lines
}

type lister struct {
	pkg   *types.Package
	lines []string
}

func (l *lister) add(format string, args ...any) {
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

// typ returns a type as text. The text includes the path of every package except the listed one.
// The path shows the major version of a dependency. Other major versions have different types.
func (l *lister) typ(t types.Type) string {
	return types.TypeString(nameless(t), func(p *types.Package) string {
		if p == l.pkg {
			return ""
		}
		return strings.TrimPrefix(p.Path(), module)
	})
}

func (l *lister) signature(s types.Type) string { return strings.TrimPrefix(l.typ(s), "func") }

func (l *lister) object(o types.Object) {
	switch o := o.(type) {
	case *types.Const:
		l.add("const %s %s = %s", o.Name(), l.typ(o.Type()), o.Val().ExactString())
	case *types.Var:
		l.add("var %s %s", o.Name(), l.typ(o.Type()))
	case *types.Func:
		l.add("func %s%s", o.Name(), l.signature(o.Type()))
	case *types.TypeName:
		l.declared(o)
	}
}

func (l *lister) declared(o *types.TypeName) {
	if o.IsAlias() {
		l.add("type %s = %s", o.Name(), l.typ(types.Unalias(o.Type())))
		return
	}
	named := o.Type().(*types.Named)
	if named.TypeParams() != nil {
		panic(o.Name() + " has type parameters, which this listing can't write yet")
	}
	switch t := named.Underlying().(type) {
	case *types.Interface:
		l.iface(o.Name(), t)
		return // the interface's line contains its methods
	case *types.Struct:
		comparable := ""
		if types.Comparable(t) {
			comparable = " (comparable)"
		}
		l.add("type %s struct%s", o.Name(), comparable)
		l.fields(o.Name(), t)
	default:
		l.add("type %s %s", o.Name(), l.typ(t))
	}
	values := types.NewMethodSet(named)
	l.methods(o.Name(), values, nil)
	l.methods("*"+o.Name(), types.NewMethodSet(types.NewPointer(named)), values)
}

// iface adds the lines of an interface. An interface that programs may implement is a single line,
// since a new method is an incompatible change. Any other interface has one line for each method.
func (l *lister) iface(name string, t *types.Interface) {
	var methods []string
	open := true
	for m := range t.Methods() {
		open = open && m.Exported()
		if m.Exported() {
			methods = append(methods, m.Name()+l.signature(m.Type()))
		}
	}
	if open {
		l.add("type %s interface { %s }", name, strings.Join(methods, "; "))
		return
	}
	l.add("type %s interface, with unexported methods", name)
	for _, m := range methods {
		l.add("type %s interface, %s", name, m)
	}
}

func (l *lister) fields(name string, t *types.Struct) {
	for f := range t.Fields() {
		switch inner, isStruct := types.Unalias(f.Type()).Underlying().(*types.Struct); {
		case f.Exported():
			l.add("type %s struct, %s %s", name, f.Name(), l.typ(f.Type()))
		case f.Embedded() && isStruct:
			l.fields(name, inner)
		}
	}
}

// methods adds the exported methods of a method set, including the promoted methods of embedded
// types. It leaves out all methods that are also in the second set, which can be nil.
func (l *lister) methods(name string, set, but *types.MethodSet) {
	for m := range set.Methods() {
		if m.Obj().Exported() && (but == nil || but.Lookup(nil, m.Obj().Name()) == nil) {
			l.add("method (%s) %s%s", name, m.Obj().Name(), l.signature(m.Type()))
		}
	}
}

// nameless returns a type without the names of its functions' parameters. Those names aren't part
// of the API.
func nameless(t types.Type) types.Type {
	switch t := t.(type) {
	case *types.Pointer:
		return types.NewPointer(nameless(t.Elem()))
	case *types.Slice:
		return types.NewSlice(nameless(t.Elem()))
	case *types.Array:
		return types.NewArray(nameless(t.Elem()), t.Len())
	case *types.Chan:
		return types.NewChan(t.Dir(), nameless(t.Elem()))
	case *types.Map:
		return types.NewMap(nameless(t.Key()), nameless(t.Elem()))
	case *types.Signature:
		params := slices.Collect(t.TypeParams().TypeParams())
		return types.NewSignatureType(nil, nil, params, namelessTuple(t.Params()),
			namelessTuple(t.Results()), t.Variadic())
	default:
		return t
	}
}

func namelessTuple(t *types.Tuple) *types.Tuple {
	var vars []*types.Var
	for v := range t.Variables() {
		vars = append(vars, types.NewParam(token.NoPos, nil, "", nameless(v.Type())))
	}
	return types.NewTuple(vars...)
}
