<?php
// Sends the corpus with the mail manager of Laravel, as its configuration says.
foreach (['Mail', 'Config', 'Events', 'View', 'Filesystem'] as $part) {
    require "Illuminate/$part/autoload.php";
}
require 'GuzzleHttp/autoload.php';
require 'Egulias/EmailValidator/autoload.php';

use Illuminate\Config\Repository;
use Illuminate\Container\Container;
use Illuminate\Contracts\Support\Htmlable;
use Illuminate\Events\Dispatcher;
use Illuminate\Filesystem\Filesystem;
use Illuminate\Mail\MailManager;
use Illuminate\View\Engines\EngineResolver;
use Illuminate\View\Factory;
use Illuminate\View\FileViewFinder;

function manager(string $key): MailManager
{
    $app = new Container();
    $app['config'] = new Repository([
        'mail' => [
            'default' => getenv('SCHEME'),
            'mailers' => [
                'smtp' => [
                    'transport' => 'smtp', 'host' => getenv('HOST'), 'port' => getenv('PORT'), 'encryption' => 'tls',
                    'username' => 'apikey', 'password' => $key, 'stream' => ['ssl' => ['cafile' => getenv('CA')]],
                ],
                'mailgun' => ['transport' => 'mailgun'],
            ],
        ],
        'services' => [
            'mailgun' => [
                'domain' => 'demo.test', 'secret' => $key, 'endpoint' => getenv('HTTPS'),
                'guzzle' => ['verify' => getenv('CA')],
            ],
        ],
    ]);
    $app['events'] = new Dispatcher($app);
    $app['view'] = new Factory(new EngineResolver(), new FileViewFinder(new Filesystem(), []), $app['events']);
    return new MailManager($app);
}

/** The HTML of a mail, with the content ids that Laravel made. */
class Page implements Htmlable
{
    public function __construct(public string $html)
    {
    }

    public function toHtml()
    {
        return $this->html;
    }
}

$send = function (MailManager $manager, array $letter) {
    $page = new Page($letter['html']);
    $view = array_filter(['html' => $letter['html'] ? $page : null, 'raw' => $letter['text']]);
    $manager->mailer()->send($view, [], function ($m) use ($letter, $page) {
        $m->from($letter['from'], $letter['name'])->to($letter['to'])->subject($letter['subject']);
        $m->cc($letter['cc'] ?? [])->bcc($letter['bcc'] ?? []);
        if ($letter['reply_to']) {
            $m->replyTo($letter['reply_to']);
        }
        if ($letter['message_id']) {
            $m->getSwiftMessage()->setId(trim($letter['message_id'], '<>'));
        }
        $headers = $letter['headers'] ?? [];
        if ($letter['at']) {
            $headers['X-Mailgun-Deliver-By'] = (new DateTime($letter['at']))->format(DATE_RFC2822);
        }
        foreach ($headers as $name => $value) {
            $m->getHeaders()->addTextHeader($name, $value);
        }
        foreach ($letter['files'] ?? [] as $file) {
            $content = base64_decode($file['content']);
            if ($file['content_id']) {
                $cid = $m->embedData($content, $file['name'], $file['type']);
                $page->html = str_replace('cid:' . $file['content_id'], $cid, $page->html);
            } else {
                $method = $file['params']['method'] ?? '';
                $type = $file['type'] . ($method ? "; method=$method" : '');
                $m->attachData($content, $file['name'], ['mime' => $type]);
            }
        }
    });
    echo "sent\n";
};
$manager = manager(getenv('KEY'));
foreach (json_decode(file_get_contents('corpus.json'), true) as $letter) {
    $send($manager, $letter);
}
try {
    $send(manager('wrong'), $letter);
} catch (Exception $e) {
    echo 'refused ', $e->getMessage(), ' ', $e->getPrevious()?->getMessage(), "\n";
}
