package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/templates"
)

func (c *cli) templateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "template",
		Short: "List, show, push, publish and preview templates",
		Long: `Work with the templates of a user: the only one, or the one that init has added, unless --user names another.
A template is a folder with the files subject.txt, body.html, body.txt and template.yaml (sender, category, defaults,
schema, allow_raw), and a folder for each language, like de, with subject.txt, body.html and body.txt.`,
	}
	var user string
	cmd.PersistentFlags().StringVar(&user, "user", "", "owner of the templates, by name")
	about := func(
		use, short string, args int, do func(ctx context.Context, l *templates.Library, user string, args []string) error,
	) *cobra.Command {
		sub := &cobra.Command{
			Use:   use,
			Short: short,
			Args:  takes(args, args),
			RunE: func(cmd *cobra.Command, args []string) error {
				return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
					u, err := c.sendingUser(ctx, svc, user)
					if err != nil {
						return err
					}
					return do(ctx, svc.Templates, u.ID, args)
				})
			},
		}
		cmd.AddCommand(sub)
		return sub
	}
	c.withJSON(about("list", "List templates by name", 0, c.listTemplates), jsonRows)
	show := about("show NAME", "Show the published or else the newest version, and the numbers of all", 1, c.showTemplate)
	c.withJSON(show, jsonObject+", with the numbers of all versions")
	about("publish NAME VERSION", "Make a version the one that batches use; an older one rolls back", 2, c.publishTemplate)
	var publish bool
	push := about(
		"push DIR",
		"Store each folder of DIR as a new version of the template of its name, unless it is the same",
		1,
		func(ctx context.Context, l *templates.Library, user string, args []string) error {
			return c.pushTemplates(ctx, l, user, os.DirFS(c.path(args[0])), publish)
		},
	)
	push.Long = "The folder must be readable for the server, if one runs: it carries out the command."
	push.Flags().BoolVar(&publish, "publish", false, "publish the versions")
	var to, name, vars, language string
	preview := about(
		"preview NAME",
		"Show a template as a recipient gets it, with warnings; NAME@VERSION names a version",
		1,
		func(ctx context.Context, l *templates.Library, user string, args []string) error {
			s := templates.Sample{Template: args[0], Language: language, To: models.Recipient{Email: to, Name: name}}
			if err := readVars(vars, &s); err != nil {
				return err
			}
			return c.previewTemplate(ctx, l, user, s)
		},
	)
	c.withJSON(preview, jsonObject)
	preview.Flags().StringVar(&to, "to", "ann@example.com", "address of the recipient")
	preview.Flags().StringVar(&name, "name", "Ann", "name of the recipient")
	preview.Flags().StringVar(&vars, "vars", "{}", "variables of the recipient, as a JSON object")
	preview.Flags().StringVar(&language, "language", "", "language, like de-AT")
	return cmd
}

func (c *cli) listTemplates(ctx context.Context, l *templates.Library, user string, _ []string) error {
	t := c.newTable("NAME\tSTATE\tPUBLISHED\tNEWEST\tUPDATED")
	for cursor, more := "", true; more; {
		list, next, err := l.List(ctx, user, pageRows, cursor)
		if err != nil {
			return err
		}
		for _, i := range list {
			var published any = i.Published
			if i.Published == 0 {
				published = ""
			}
			t.row(i.Name, i.State, published, i.Newest, i.UpdatedAt)
		}
		cursor, more = next, next != ""
	}
	return t.flush()
}

func (c *cli) showTemplate(ctx context.Context, l *templates.Library, user string, args []string) error {
	v, err := l.Get(ctx, user, args[0], 0)
	if err != nil {
		return orMissing(err, "template", args[0])
	}
	versions, _, err := l.Versions(ctx, user, args[0], pageRows, "")
	if err != nil {
		return err
	}
	if c.json {
		return json.NewEncoder(c.out).Encode(struct {
			client.Template
			Versions []client.TemplateVersion `json:"versions"`
		}{v, versions})
	}
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	fmt.Fprintf(c.out, "%s\n", raw)
	t := c.newTable("VERSION\tCREATED\tPUBLISHED")
	for _, v := range versions {
		t.row(v.Version, v.CreatedAt, v.Published)
	}
	return t.flush()
}

func (c *cli) publishTemplate(ctx context.Context, l *templates.Library, user string, args []string) error {
	number, err := strconv.Atoi(args[1])
	if err != nil {
		return wrongUsage("%s is not the number of a version", args[1])
	}
	info, err := l.Publish(ctx, user, args[0], number)
	if err == nil {
		fmt.Fprintf(c.out, "%s: version %d is published\n", info.Name, info.Published)
	}
	return orMissing(err, "template", args[0])
}

// pushTemplates stores each folder as a template.
func (c *cli) pushTemplates(ctx context.Context, l *templates.Library, user string, dir fs.FS, publish bool) error {
	entries, err := fs.ReadDir(dir, ".")
	if err != nil {
		return err
	}
	n := 0
	for _, e := range entries {
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		n++
		src, err := readTemplate(dir, e.Name())
		if err != nil {
			return err
		}
		in := client.NewTemplateVersion{TemplateSource: src, Publish: publish}
		v, err := l.AddVersion(ctx, user, e.Name(), &in)
		var missing *service.Error
		if errors.As(err, &missing) && missing.Kind == service.NotFound {
			v, err = l.Create(ctx, user, &client.NewTemplate{Name: e.Name(), NewTemplateVersion: in})
		}
		if err != nil {
			return fmt.Errorf("%s: %w", e.Name(), templateError(err))
		}
		state := "a draft"
		if v.Published == v.Version {
			state = "published"
		}
		fmt.Fprintf(c.out, "%s: version %d is %s\n", v.Name, v.Version, state)
	}
	if n == 0 {
		return errors.New("there is no folder with a template in it; see safedelivr template --help")
	}
	return nil
}

// templateError lists the mistakes in a template, each by the part that it is in.
func templateError(err error) error {
	var e *service.Error
	if !errors.As(err, &e) {
		return err
	}
	text := e.Detail
	for _, f := range e.Fields {
		text += "\n  " + strings.TrimPrefix(f.Pointer, "/") + ": " + f.Detail
	}
	return exitWith(codeOfKind(err), errors.New(text))
}

// readTemplate reads the folder of a template.
func readTemplate(dir fs.FS, name string) (src client.TemplateSource, err error) {
	raw, err := readOptional(dir, path.Join(name, "template.yaml"))
	if err != nil {
		return src, err
	}
	if raw != "" {
		settings, err := yaml.Parser().Unmarshal([]byte(raw))
		if err != nil {
			return src, fmt.Errorf("%s/template.yaml: %w", name, err)
		}
		asJSON, err := json.Marshal(settings)
		if err != nil {
			return src, fmt.Errorf("%s/template.yaml: %w", name, err)
		}
		d := json.NewDecoder(bytes.NewReader(asJSON))
		d.DisallowUnknownFields()
		if err := d.Decode(&src); err != nil {
			return src, fmt.Errorf("%s/template.yaml: %w", name, err)
		}
	}
	if src.TemplateContent, err = readContent(dir, name); err != nil {
		return src, err
	}
	entries, err := fs.ReadDir(dir, name)
	if err != nil {
		return src, err
	}
	for _, e := range entries {
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if src.Languages == nil {
			src.Languages = map[string]client.TemplateContent{}
		}
		if src.Languages[e.Name()], err = readContent(dir, path.Join(name, e.Name())); err != nil {
			return src, err
		}
	}
	return src, nil
}

func readContent(dir fs.FS, folder string) (c client.TemplateContent, err error) {
	for file, to := range map[string]*string{"subject.txt": &c.Subject, "body.html": &c.HTML, "body.txt": &c.Text} {
		if *to, err = readOptional(dir, path.Join(folder, file)); err != nil {
			return c, err
		}
	}
	c.Subject = strings.TrimSpace(c.Subject)
	return c, nil
}

// readOptional reads a file; one that does not exist is empty.
func readOptional(dir fs.FS, name string) (string, error) {
	raw, err := fs.ReadFile(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(raw), err
}

// readVars decodes the variables of a recipient.
func readVars(text string, s *templates.Sample) error {
	var vars map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &vars); err != nil {
		return fmt.Errorf("--vars is not a JSON object: %w", err)
	}
	s.To.Vars = map[string]string{}
	for name, raw := range vars {
		var value string
		if json.Unmarshal(raw, &value) != nil {
			value = string(raw)
			s.JSON = append(s.JSON, name)
		}
		s.To.Vars[name] = value
	}
	return nil
}

func (c *cli) previewTemplate(ctx context.Context, l *templates.Library, user string, s templates.Sample) error {
	p, _, err := l.Preview(ctx, user, s)
	if err != nil {
		return templateError(err)
	}
	if c.json {
		return json.NewEncoder(c.out).Encode(p)
	}
	for _, h := range p.Headers {
		fmt.Fprintf(c.out, "%s: %s\n", h.Name, h.Value)
	}
	for _, body := range []string{p.Text, p.HTML} {
		if body != "" {
			fmt.Fprintf(c.out, "\n%s\n", body)
		}
	}
	for _, w := range p.Warnings {
		fmt.Fprintf(c.err, "warning: %s: %s\n", w.Code, w.Detail)
	}
	return nil
}
